#include <fcntl.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/log.h"
#include "base/status.h"
#include "cli/arguments.h"
#include "cli/cluster.h"
#include "cli/commands.h"
#include "cli/ports.h"
#include "cli/supervisor.h"

namespace parkway::cli {
namespace {

constexpr int kDefaultPort = 29000;
constexpr char kReadyMark = '\x06';  // last byte from a detached supervisor to the command that started it

struct UpOptions {
  std::string name = "default";
  ClusterShape shape;
  std::string port;  // empty: the default; "auto"
  bool detach = false;
};

std::string Counted(int n, const char* what) { return absl::StrCat(n, " ", what, n == 1 ? "" : "s"); }

std::string ReadyText(const ClusterRecord& record, absl::Duration took, bool detached) {
  const std::string name_flag = record.name == "default" ? "" : " --name " + record.name;
  std::string text =
      absl::StrFormat("Parkway is ready after %.1f s: %s of %s with %s each.\n", absl::ToDoubleSeconds(took),
                      Counted(record.slices, "slice"), Counted(record.hosts_per_slice, "host"),
                      Counted(record.devices_per_host, "device"));
  absl::StrAppend(&text, "Run a program on it:\n  parkway run", name_flag,
                  " -- python script.py\nor set its environment by hand:\n");
  for (const auto& [key, value] : ClientEnvironment(record, /*tcp=*/true)) {
    absl::StrAppend(&text, "  export ", key, "=", value, "\n");
  }
  absl::StrAppend(&text, "Look at it with `parkway status", name_flag, "` and `parkway logs", name_flag, "`. ",
                  detached ? absl::StrCat("`parkway down", name_flag, "` stops it.") : "Ctrl-C stops it.", "\n");
  return text;
}

absl::Status ChoosePorts(UpOptions& options) {
  const std::vector<int> offsets = PortOffsets(options.shape);
  if (options.port == "auto") {
    PARKWAY_ASSIGN_OR_RETURN(options.shape.base_port, FindFreeBase(offsets));
    return absl::OkStatus();
  }
  options.shape.base_port = options.port.empty() ? kDefaultPort : std::atoi(options.port.c_str());
  std::vector<int> ports;
  for (const int offset : offsets) ports.push_back(options.shape.base_port + offset);
  const absl::Status is_free = CheckPortsFree(ports);
  if (is_free.ok()) return is_free;
  return absl::FailedPreconditionError(absl::StrCat(
      is_free.message(), "; this cluster would take ", ports.front(), " (proxy), ", ports[1], " (manager), ", ports[2],
      " to ", ports.back(), " (workers): choose others with --port N, or --port auto"));
}

// Lock, ports and directories, then the roles until a signal. `out` gets what the user is to read.
absl::Status Supervise(UpOptions options, FILE* out, const std::function<void()>& on_ready) {
  PARKWAY_ASSIGN_OR_RETURN(const ClusterPaths paths, PathsOf(options.name));
  PARKWAY_RETURN_IF_ERROR(MakeDirectories(paths));
  PARKWAY_RETURN_IF_ERROR(TakeLock(paths));
  RemoveRuntimeFiles(paths);  // of one that was killed
  PARKWAY_RETURN_IF_ERROR(MakeDirectories(paths));
  PARKWAY_RETURN_IF_ERROR(ChoosePorts(options));
  const auto say = [out](const std::string& line) {
    std::fprintf(out, "%s\n", line.c_str());
    std::fflush(out);
  };
  Supervisor supervisor(paths, options.shape, say, [&](const ClusterRecord& record, absl::Duration took) {
    std::fputs(ReadyText(record, took, options.detach).c_str(), out);
    std::fflush(out);
    on_ready();
  });
  return supervisor.Run();
}

int RunInForeground(const UpOptions& options) {
  const absl::Status status = Supervise(options, stdout, [] {});
  if (status.ok()) {
    std::puts("Stopped.");
    return 0;
  }
  return Fail(status);
}

// The supervisor: a session of its own, whose output goes to the command that started it until the cluster is ready,
// and to a file afterwards.
[[noreturn]] void RunDetached(const UpOptions& options, int to_parent) {
  setsid();
  const auto paths = PathsOf(options.name);
  FILE* out = fdopen(to_parent, "w");
  absl::Status status = paths.status();
  if (status.ok()) status = MakeDirectories(*paths);
  if (status.ok()) {
    const int log = open((paths->logs + "/supervisor.log").c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    const int none = open("/dev/null", O_RDONLY | O_CLOEXEC);
    dup2(none, 0);
    dup2(log, 1);
    dup2(log, 2);
    status = Supervise(options, out, [&] {
      std::fputc(kReadyMark, out);
      std::fflush(out);
      dup2(log, to_parent);  // closes the pipe, and lets the parent go
    });
  }
  if (!status.ok()) std::fprintf(out, "%s\n", std::string(status.message()).c_str());
  std::fflush(out);
  _exit(status.ok() ? 0 : 1);
}

// Copies what the supervisor says until it is ready or has ended.
int FollowUntilReady(int from_child) {
  std::array<char, 4096> buffer;
  std::string kept;  // an error comes last, and belongs on stderr
  bool ready = false;
  for (ssize_t got; (got = read(from_child, buffer.data(), buffer.size())) != 0;) {
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) break;
    kept.append(buffer.data(), static_cast<size_t>(got));
    const size_t mark = kept.find(kReadyMark);
    ready = ready || mark != std::string::npos;
    if (mark != std::string::npos) kept.erase(mark, 1);
    if (ready) break;
  }
  std::fputs(kept.c_str(), ready ? stdout : stderr);
  return ready ? 0 : 1;
}

int Detach(const UpOptions& options) {
  int pipe_fds[2];
  if (pipe2(pipe_fds, O_CLOEXEC) != 0) return Fail(absl::UnavailableError(absl::StrCat("pipe: ", strerror(errno))));
  const pid_t pid = fork();
  if (pid < 0) return Fail(absl::UnavailableError(absl::StrCat("fork: ", strerror(errno))));
  if (pid == 0) {
    close(pipe_fds[0]);
    RunDetached(options, pipe_fds[1]);
  }
  close(pipe_fds[1]);
  return FollowUntilReady(pipe_fds[0]);
}

}  // namespace

int Up(const CommandArguments& args) {
  UpOptions options;
  CLI::App app("Start a cluster on this machine: a manager, one worker for each host, a proxy.", "parkway up");
  app.add_option("--name", options.name, "of the cluster, for the other commands (default)");
  app.add_option("--slices", options.shape.slices, "slices")->check(CLI::Range(1, 1024))->capture_default_str();
  app.add_option("--hosts-per-slice", options.shape.hosts_per_slice, "hosts in each slice, one worker process each")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  app.add_option("--devices-per-host", options.shape.devices_per_host, "devices of each host")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  app.add_option("--port", options.port,
                 "the proxy's; the manager takes the next, workers those from five higher; 'auto'")
      ->check(CLI::Range(1, 65535) | CLI::IsMember({"auto"}));
  app.add_flag("--detach", options.detach, "return when the cluster is ready");
  app.add_option("--stop-with-pid", options.shape.stop_with_pid, "stop the cluster when this process has ended");
  if (const auto code = ParseArguments(app, args)) return *code;
  InitLogging("up");
  BlockStopSignals();
  return options.detach ? Detach(options) : RunInForeground(options);
}

}  // namespace parkway::cli
