// Commands that use a cluster that runs: down, status, run, cancel, logs.
#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "base/limits.h"
#include "base/status.h"
#include "cli/arguments.h"
#include "cli/cluster.h"
#include "cli/commands.h"
#include "cli/manager_status.h"
#include "cli/status_text.h"
#include "proto/parkway/manager.pb.h"

namespace parkway::cli {
namespace {

constexpr absl::Duration kDownWait = absl::Seconds(20);
constexpr absl::Duration kStatusWait = absl::Seconds(3);

void AddName(CLI::App& app, std::string& name) {
  app.add_option("--name", name, "of the cluster")->capture_default_str();
}

void AddManagerAddress(CLI::App& app, std::string& address) {
  app.add_option("--resource_manager_address,--resource-manager-address", address,
                 "host:port of a manager that `parkway up` did not start");
}

absl::StatusOr<ClusterRecord> RecordOf(const std::string& name) {
  PARKWAY_ASSIGN_OR_RETURN(const ClusterPaths paths, PathsOf(name));
  return ReadRecord(paths);
}

bool WaitForEnd(const ClusterPaths& paths, absl::Duration at_most) {
  const absl::Time deadline = absl::Now() + at_most;
  while (SupervisorOf(paths) != 0) {
    if (absl::Now() > deadline) return false;
    absl::SleepFor(absl::Milliseconds(20));
  }
  return true;
}

absl::Status StopCluster(const ClusterPaths& paths) {
  const pid_t supervisor = SupervisorOf(paths);
  if (supervisor == 0) {
    RemoveRuntimeFiles(paths);  // of one that was killed
    return ReadRecord(paths).status();
  }
  kill(supervisor, SIGTERM);
  if (WaitForEnd(paths, kDownWait)) return absl::OkStatus();
  kill(supervisor, SIGKILL);  // its children die with it
  if (!WaitForEnd(paths, absl::Seconds(5))) {
    return absl::UnavailableError(absl::StrCat("process ", supervisor, " does not end; its state is in ", paths.dir));
  }
  RemoveRuntimeFiles(paths);
  return absl::OkStatus();
}

// The transfer directory holds files under names that say nothing of the client, so only one client at a time may use
// it: the one that holds this lock, which it keeps, open, until it ends. The others send everything inside requests.
bool LockTransfers(const ClusterRecord& record) {
  const int fd = open((record.transfers + "/.client").c_str(), O_RDWR | O_CREAT, 0600);  // stays open in the program
  if (fd < 0) return false;
  if (flock(fd, LOCK_EX | LOCK_NB) == 0) return true;
  close(fd);
  return false;
}

// True also where the list has been cut.
bool HasSession(const ManagerStatus& status, const SessionId& id) {
  for (const LeaseStatus& lease : status.leases()) {
    const ProxyReport& report = lease.report();
    if (lease.epoch() != id.lease_epoch) continue;
    if (report.sessions() > report.by_session_size()) return true;
    return std::any_of(report.by_session().begin(), report.by_session().end(),
                       [&](const SessionReport& session) { return session.session() == id.session; });
  }
  return false;
}

// What `parkway cancel` without a session means: the only one there is.
absl::StatusOr<SessionId> OnlySession(const ManagerStatus& status) {
  SessionId only;
  int64_t sessions = 0;
  for (const LeaseStatus& lease : status.leases()) {
    sessions += lease.report().sessions();
    if (lease.report().by_session_size() > 0) only = {lease.epoch(), lease.report().by_session(0).session()};
  }
  if (sessions == 1 && only.session != 0) return only;
  if (sessions == 0) return absl::NotFoundError("no client has a session, so nothing is to be cancelled");
  return absl::InvalidArgumentError(absl::StrCat(
      "there are ", sessions, " sessions: name one (`parkway cancel SESSION`), or --all\n", SessionsText(status)));
}

}  // namespace

int Down(const CommandArguments& args) {
  std::string name = "default";
  CLI::App app("Stop a cluster that `parkway up` started.", "parkway down");
  AddName(app, name);
  if (const auto code = ParseArguments(app, args)) return *code;
  const auto paths = PathsOf(name);
  if (!paths.ok()) return Fail(paths.status());
  if (const absl::Status stopped = StopCluster(*paths); !stopped.ok()) return Fail(stopped);
  std::printf("Stopped '%s'.\n", name.c_str());
  return 0;
}

int Status(const CommandArguments& args) {
  std::string name = "default", address;
  bool json = false;
  CLI::App app("Show slices, hosts, devices, sessions, programs run and bytes held.", "parkway status");
  AddName(app, name);
  AddManagerAddress(app, address);
  app.add_flag("--json", json, "print JSON");
  if (const auto code = ParseArguments(app, args)) return *code;
  ClusterRecord record;
  if (address.empty()) {
    auto found = RecordOf(name);
    if (!found.ok()) return Fail(found.status());
    record = *std::move(found);
    address = record.manager_address;
  }
  const auto status = FetchManagerStatus(address, kStatusWait);
  if (!status.ok()) return Fail(status.status());
  std::fputs(json ? StatusJson(*status, record).c_str() : StatusText(*status, record).c_str(), stdout);
  return 0;
}

int Cancel(const CommandArguments& args) {
  std::string name = "default", address, session;
  bool all = false;
  CLI::App app(
      "End the programs that a session runs: those that wait at once, those that run when they don't end by themselves "
      "within 10 s, together with their engines, which are started again. Their results are CANCELLED errors; the "
      "session goes on and keeps its arrays, and so do the others.",
      "parkway cancel");
  AddName(app, name);
  AddManagerAddress(app, address);
  auto* of_one = app.add_option("session", session, "as `parkway status` lists it; not needed where there is only one");
  app.add_flag("--all", all, "the programs of all sessions")->excludes(of_one);
  if (const auto code = ParseArguments(app, args)) return *code;
  if (address.empty()) {
    const auto record = RecordOf(name);
    if (!record.ok()) return Fail(record.status());
    address = record->manager_address;
  }
  const auto status = FetchManagerStatus(address, kStatusWait);
  if (!status.ok()) return Fail(status.status());
  std::vector<SessionId> wanted;
  if (all) {
    for (const LeaseStatus& lease : status->leases()) wanted.push_back({lease.epoch(), 0});
  } else {
    const auto one = session.empty() ? OnlySession(*status) : ParseSessionId(session);
    if (!one.ok()) return Fail(one.status());
    if (!HasSession(*status, *one)) {
      return Fail(
          absl::NotFoundError(absl::StrCat("no session ", session, "; there are these:\n", SessionsText(*status))));
    }
    wanted.push_back(*one);
  }
  for (const SessionId& one : wanted) {
    const absl::Status asked = CancelPrograms(address, one.lease_epoch, one.session, kStatusWait);
    if (!asked.ok()) return Fail(asked);
    const std::string whose = one.session == 0 ? absl::StrCat("all sessions of lease ", one.lease_epoch)
                                               : absl::StrCat("session ", one.lease_epoch, ".", one.session);
    std::printf(
        "The programs of %s are cancelled. One that still runs in %s ends with its engine, which is started "
        "again.\n",
        whose.c_str(), absl::FormatDuration(limits::kEndlessProgramGrace).c_str());
  }
  return 0;
}

int Run(const CommandArguments& args) {
  std::string name = "default";
  bool tcp = false, print = false;
  CLI::App app("Run a program with JAX's devices on the cluster: parkway run -- python script.py", "parkway run");
  AddName(app, name);
  app.add_flag("--tcp", tcp, "reach the proxy by TCP and not by its socket");
  app.add_flag("--print-environment", print, "print what would be set, as JSON, and start nothing");
  app.prefix_command();  // the program's own flags are none of ours
  const auto dashes = std::find(args.begin(), args.end(), "--");
  if (const auto code = ParseArguments(app, {args.begin(), dashes})) return *code;
  std::vector<std::string> command = app.remaining();
  if (dashes != args.end()) command.insert(command.end(), dashes + 1, args.end());
  const auto record = RecordOf(name);
  if (!record.ok()) return Fail(record.status());
  if (print) {
    std::puts(nlohmann::json(ClientEnvironment(*record, tcp)).dump(2).c_str());
    return 0;
  }
  if (command.empty()) {
    return Fail(absl::InvalidArgumentError("run: no program; try `parkway run -- python script.py`"));
  }
  const bool own_transfers = !tcp && LockTransfers(*record);
  for (const auto& [key, value] : ClientEnvironment(*record, tcp)) {
    if (own_transfers || !absl::StrContains(key, "LARGE_TRANSFER")) setenv(key.c_str(), value.c_str(), 1);
  }
  setenv("TF_CPP_MIN_LOG_LEVEL", "3", /*overwrite=*/0);  // jaxlib logs stacks when a client disconnects at its end
  std::vector<char*> argv;
  for (std::string& word : command) argv.push_back(word.data());
  argv.push_back(nullptr);
  execvp(argv[0], argv.data());
  std::fprintf(stderr, "parkway run: can't start %s: %s\n", argv[0], strerror(errno));
  return 127;
}

int Logs(const CommandArguments& args) {
  std::string name = "default", role, lines = "100";
  bool follow = false;
  CLI::App app("Print the logs of a cluster's roles, also of one that has stopped.", "parkway logs");
  AddName(app, name);
  app.add_option("role", role,
                 "manager, proxy, worker-SLICE-HOST, supervisor, or the beginning of one; all by default");
  app.add_option("-n,--lines", lines, "lines of each, from the end")->capture_default_str();
  app.add_flag("-f,--follow", follow, "go on as they grow");
  if (const auto code = ParseArguments(app, args)) return *code;
  const auto paths = PathsOf(name);
  if (!paths.ok()) return Fail(paths.status());
  std::vector<std::string> argv = {"tail", "-n", lines};
  if (follow) argv.emplace_back("-F");
  std::vector<std::string> files;
  std::error_code missing;  // no directory: no logs
  for (const auto& entry : std::filesystem::directory_iterator(paths->logs, missing)) {
    const std::string file = entry.path().filename();
    if (absl::StartsWith(file, role) && absl::EndsWith(file, ".log")) files.push_back(entry.path());
  }
  if (files.empty()) {
    return Fail(absl::FailedPreconditionError(absl::StrCat("no log of '", role, "' in ", paths->logs)));
  }
  std::sort(files.begin(), files.end());
  argv.insert(argv.end(), files.begin(), files.end());
  std::vector<char*> pointers;
  for (std::string& word : argv) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  execvp(pointers[0], pointers.data());
  return Fail(absl::UnavailableError(absl::StrCat("can't start tail: ", strerror(errno))));
}

}  // namespace parkway::cli
