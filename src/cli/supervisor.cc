#include "cli/supervisor.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <mutex>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/limits.h"
#include "base/status.h"
#include "base/subprocess.h"
#include "cli/manager_status.h"
#include "proto/parkway/manager.pb.h"

namespace parkway::cli {
namespace {

constexpr absl::Duration kReadyPoll = absl::Milliseconds(30);
constexpr absl::Duration kSlowStart = absl::Seconds(15);  // says so then
constexpr int kTailLines = 8;
constexpr int kWrongArguments = 2;  // exit code of a role

void Drain(int fd) {
  uint64_t count;
  [[maybe_unused]] const ssize_t got = read(fd, &count, sizeof(count));
}

bool Accepts(const std::string& socket_path) {
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return false;
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  socket_path.copy(address.sun_path, sizeof(address.sun_path) - 1);
  const bool connected = connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0;
  close(fd);
  return connected;
}

std::string ThisBinary() { return std::filesystem::read_symlink("/proc/self/exe"); }

}  // namespace

// What wakes the loop: ended children (an eventfd and a list), signals, the end of the process it goes with.
struct Supervisor::Events {
  std::mutex mutex;
  std::vector<std::pair<Role*, ExitStatus>> ended;
  int wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  int signals = -1;
  int owner = -1;  // pidfd; -1: none
  ~Events() {
    close(wake);
    if (signals >= 0) close(signals);
    if (owner >= 0) close(owner);
  }
};

struct Supervisor::Role {
  std::string name;
  std::vector<std::string> argv;
  std::string log;
  std::unique_ptr<Subprocess> process;  // null: not running
  absl::Time started;
  absl::Time restart_at = absl::InfiniteFuture();
  absl::Duration pause = limits::kRestartPause;  // before the next start
  int restarts = 0;
};

std::string ClusterShape::SliceType() const { return absl::StrCat("cpu:", hosts_per_slice, "x", devices_per_host); }

std::vector<int> PortOffsets(const ClusterShape& shape) {
  std::vector<int> offsets = {0, 1};
  for (int i = 0; i < shape.slices * shape.hosts_per_slice; ++i) offsets.push_back(5 + i);
  return offsets;
}

namespace {
sigset_t StopSignals() {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : {SIGTERM, SIGINT, SIGHUP}) sigaddset(&set, signal);
  return set;
}
}  // namespace

void BlockStopSignals() {
  const sigset_t set = StopSignals();
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
}

Supervisor::Supervisor(ClusterPaths paths, ClusterShape shape, std::function<void(const std::string&)> say,
                       std::function<void(const ClusterRecord&, absl::Duration)> ready)
    : paths_(std::move(paths)),
      shape_(shape),
      say_(std::move(say)),
      ready_(std::move(ready)),
      started_(absl::Now()),
      events_(std::make_shared<Events>()) {
  record_.name = paths_.name;
  record_.supervisor_pid = getpid();
  record_.slices = shape_.slices;
  record_.hosts_per_slice = shape_.hosts_per_slice;
  record_.devices_per_host = shape_.devices_per_host;
  record_.proxy_address = absl::StrCat("127.0.0.1:", shape_.base_port);
  record_.manager_address = absl::StrCat("127.0.0.1:", shape_.base_port + 1);
  record_.proxy_socket = paths_.proxy_socket;
  record_.transfers = paths_.transfers;

  const std::string to_manager = absl::StrCat("--resource_manager_address=", record_.manager_address);
  const std::string loopback = "--bind_address=127.0.0.1";
  // For a manager that dies while the cluster runs; of a cluster that has ended nothing goes on.
  const std::string manager_state = absl::StrCat(paths_.dir, "/manager");
  std::error_code ignored;  // the manager says what is wrong with the directory
  std::filesystem::remove_all(manager_state, ignored);
  roles_.push_back(
      MakeRole("manager",
               {"server", "--node_type=resource_manager", absl::StrCat("--server_port=", shape_.base_port + 1),
                absl::StrCat("--instance_count=", shape_.slices), absl::StrCat("--instance_type=", shape_.SliceType()),
                absl::StrCat("--state_dir=", manager_state), loopback}));
  for (int slice = 0; slice < shape_.slices; ++slice) {
    for (int host = 0; host < shape_.hosts_per_slice; ++host) {
      const int port = shape_.base_port + 5 + slice * shape_.hosts_per_slice + host;
      roles_.push_back(MakeRole(
          absl::StrCat("worker-", slice, "-", host),
          {"server", absl::StrCat("--server_port=", port), to_manager, loopback, absl::StrCat("--slice=slice-", slice),
           absl::StrCat("--host_index=", host), absl::StrCat("--devices=", shape_.devices_per_host)}));
    }
  }
  const std::vector<std::string> virtual_slices(shape_.slices, shape_.SliceType());
  roles_.push_back(MakeRole("proxy", {"proxy_server", absl::StrCat("--server_port=", shape_.base_port), to_manager,
                                      loopback, absl::StrCat("--virtual_slices=", absl::StrJoin(virtual_slices, ",")),
                                      absl::StrCat("--unix_socket=", paths_.proxy_socket),
                                      absl::StrCat("--large_transfer_directory=", paths_.transfers)}));
}

Supervisor::~Supervisor() = default;

std::unique_ptr<Supervisor::Role> Supervisor::MakeRole(const std::string& name, std::vector<std::string> arguments) {
  auto role = std::make_unique<Role>();
  role->name = name;
  role->argv = {ThisBinary()};
  role->argv.insert(role->argv.end(), arguments.begin(), arguments.end());
  role->log = absl::StrCat(paths_.logs, "/", name, ".log");
  std::error_code ignored;  // there is no earlier log the first time
  std::filesystem::rename(role->log, role->log + ".1", ignored);
  return role;
}

absl::Status Supervisor::StartRole(Role& role) {
  const int log = open(role.log.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  const int none = open("/dev/null", O_RDONLY | O_CLOEXEC);
  if (log < 0 || none < 0) return absl::UnavailableError(absl::StrCat("can't open ", role.log, ": ", strerror(errno)));
  role.started = absl::Now();
  role.restart_at = absl::InfiniteFuture();
  auto process = Subprocess::Start({.argv = role.argv, .fds = {{none, 0}, {log, 1}, {log, 2}}},
                                   [&role, events = events_](ExitStatus status) {
                                     const std::lock_guard lock(events->mutex);
                                     events->ended.emplace_back(&role, status);
                                     const uint64_t one = 1;
                                     [[maybe_unused]] const ssize_t written = write(events->wake, &one, sizeof(one));
                                   });
  close(log);
  close(none);
  PARKWAY_RETURN_IF_ERROR(process.status());
  role.process = *std::move(process);
  return absl::OkStatus();
}

// A child has ended by itself: says so, and sets when it starts again. Not OK when the cluster can't become ready so.
absl::Status Supervisor::OnExit(Role& role, const ExitStatus& status) {
  role.process.reset();
  const std::string what = absl::StrCat(role.name, " ", status.words(), "; the end of its log (", role.log, "):\n",
                                        TailOf(role.log, kTailLines, "    "));
  if (!record_.ready && (status.code == kWrongArguments || role.restarts >= limits::kStartTries)) {
    return absl::FailedPreconditionError(what);
  }
  if (absl::Now() - role.started > limits::kRestartPauseLongest) role.pause = limits::kRestartPause;
  role.restart_at = absl::Now() + role.pause;
  say_(absl::StrCat(what, "  it starts again in ", absl::FormatDuration(role.pause)));
  role.pause = std::min(role.pause * 2, limits::kRestartPauseLongest);
  ++role.restarts;
  return absl::OkStatus();
}

absl::Status Supervisor::StartDue() {
  bool changed = false;
  for (const auto& role : roles_) {
    if (role->process != nullptr || role->restart_at > absl::Now()) continue;
    PARKWAY_RETURN_IF_ERROR(StartRole(*role));
    changed = true;
  }
  if (changed) WriteRecordNow();
  return absl::OkStatus();
}

void Supervisor::WriteRecordNow() {
  record_.roles.clear();
  for (const auto& role : roles_) {
    record_.roles.push_back({role->name, role->process ? role->process->pid() : 0, role->restarts, role->log});
  }
  if (const absl::Status status = WriteRecord(paths_, record_); !status.ok()) say_(std::string(status.message()));
}

void Supervisor::CheckReady() {
  if (!Accepts(paths_.proxy_socket)) return;
  const auto status = FetchManagerStatus(record_.manager_address, absl::Seconds(1));
  if (!status.ok()) return;
  const auto& leases = status->leases();
  if (!std::any_of(leases.begin(), leases.end(), [](const LeaseStatus& lease) { return lease.placed(); })) return;
  for (const auto& slice : status->slices()) {
    for (const auto& worker : slice.workers()) {
      if (!worker.engine_up()) return;
    }
  }
  record_.ready = true;
  WriteRecordNow();
  ready_(record_, absl::Now() - started_);
}

absl::Duration Supervisor::UntilNextWork() const {
  absl::Duration wait = record_.ready ? absl::Hours(1) : kReadyPoll;
  for (const auto& role : roles_) {
    if (role->process == nullptr) wait = std::min(wait, role->restart_at - absl::Now());
  }
  return std::max(wait, absl::Milliseconds(1));
}

absl::Status Supervisor::Loop() {
  bool said_slow = false;
  for (;;) {
    PARKWAY_RETURN_IF_ERROR(StartDue());
    pollfd polled[] = {{events_->signals, POLLIN, 0}, {events_->wake, POLLIN, 0}, {events_->owner, POLLIN, 0}};
    poll(polled, 3, static_cast<int>(absl::ToInt64Milliseconds(UntilNextWork())) + 1);
    if (polled[0].revents != 0 || polled[2].revents != 0) return absl::OkStatus();
    if (polled[1].revents != 0) Drain(events_->wake);
    std::vector<std::pair<Role*, ExitStatus>> ended;
    {
      const std::lock_guard lock(events_->mutex);
      ended.swap(events_->ended);
    }
    for (const auto& [role, exit] : ended) PARKWAY_RETURN_IF_ERROR(OnExit(*role, exit));
    if (!ended.empty()) WriteRecordNow();
    if (record_.ready) continue;
    CheckReady();
    if (!record_.ready && !said_slow && absl::Now() - started_ > kSlowStart) {
      say_(absl::StrCat("still waiting for the slices; `parkway status --name ", paths_.name,
                        "` tells what is missing"));
      said_slow = true;
    }
  }
}

// Asks the running roles whose names start so to end, and kills those that don't in time.
void Supervisor::StopRoles(const std::string& prefix, absl::Duration grace) {
  std::vector<Subprocess*> processes;
  for (const auto& role : roles_) {
    if (role->process != nullptr && absl::StartsWith(role->name, prefix)) processes.push_back(role->process.get());
  }
  for (Subprocess* process : processes) process->Kill(SIGTERM);
  const absl::Time deadline = absl::Now() + grace;
  for (Subprocess* process : processes) {
    if (process->Wait(std::max(deadline - absl::Now(), absl::ZeroDuration()))) continue;
    process->Kill(SIGKILL);
    process->Wait(absl::Seconds(10));
  }
}

void Supervisor::StopAll() {
  StopRoles("proxy", limits::kRoleStopGrace);
  StopRoles("worker", limits::kRoleStopGrace);
  StopRoles("manager", limits::kRoleStopGrace);
  RemoveRuntimeFiles(paths_);
}

absl::Status Supervisor::Run() {
  const sigset_t set = StopSignals();
  events_->signals = signalfd(-1, &set, SFD_CLOEXEC);
  if (shape_.stop_with_pid > 0) {
    events_->owner = static_cast<int>(syscall(SYS_pidfd_open, shape_.stop_with_pid, 0));
    if (events_->owner < 0) {
      return absl::FailedPreconditionError(absl::StrCat("--stop-with-pid: no process ", shape_.stop_with_pid));
    }
  }
  for (const auto& role : roles_) role->restart_at = absl::InfinitePast();
  const absl::Status status = Loop();
  StopAll();
  return status;
}

}  // namespace parkway::cli
