#include "worker/engine_process.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <fstream>
#include <mutex>
#include <nlohmann/json.hpp>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/limits.h"
#include "base/liveness.h"
#include "base/machine.h"
#include "base/status.h"
#include "base/subprocess.h"
#include "glog/logging.h"
#include "proto/parkway/manager.pb.h"

namespace parkway::worker {
namespace {

constexpr absl::Duration kReadyPoll = absl::Milliseconds(5);
constexpr size_t kReadyLineBytes = 64 << 10;
constexpr int kReadyFd = 3, kLivenessFd = 4, kArenaFd = 5;  // the child's numbers

// How often the kernel killed something of this process's control group for lack of memory; -1: unknown.
int64_t OutOfMemoryKills() {
  std::ifstream groups("/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    absl::string_view path = line;
    if (!absl::ConsumePrefix(&path, "0::")) continue;
    std::ifstream events(absl::StrCat("/sys/fs/cgroup", path, "/memory.events"));
    std::string key;
    int64_t value;
    while (events >> key >> value) {
      if (key == "oom_kill") return value;
    }
  }
  return -1;
}

class Pipe {
 public:
  absl::Status Open() {
    int fds[2];
    if (pipe2(fds, O_CLOEXEC) != 0) {
      return absl::UnavailableError(absl::StrCat("can't make a pipe: ", std::strerror(errno)));
    }
    reader_ = fds[0];
    writer_ = fds[1];
    fcntl(reader_, F_SETFL, O_NONBLOCK);
    return absl::OkStatus();
  }
  ~Pipe() {
    if (reader_ >= 0) close(reader_);
    CloseWriter();
  }
  int writer() const { return writer_; }
  void CloseWriter() {
    if (writer_ >= 0) close(std::exchange(writer_, -1));
  }
  // What has come since the last call, at most 64 KiB.
  std::string Read() {
    std::string bytes(kReadyLineBytes, '\0');
    const ssize_t n = read(reader_, bytes.data(), bytes.size());
    bytes.resize(n > 0 ? n : 0);
    return bytes;
  }

 private:
  int reader_ = -1, writer_ = -1;
};

absl::StatusOr<EngineEndpoint> ParseReadyLine(const std::string& line, int pid) {
  const nlohmann::json json = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
  auto text = [&](const char* key) {
    auto it = json.find(key);
    return it != json.end() && it->is_string() ? it->get<std::string>() : std::string();
  };
  EngineEndpoint endpoint;
  if (json.is_object()) {
    auto it = json.find("incarnation");
    if (it != json.end() && it->is_number_unsigned()) endpoint.set_incarnation(it->get<uint64_t>());
    endpoint.set_address(text("address"));
    endpoint.set_unix_path(text("unix_path"));
    endpoint.set_machine(text("machine").empty() ? MachineIdentity() : text("machine"));
    endpoint.set_pid(pid);
  }
  if (endpoint.incarnation() == 0 || endpoint.address().empty()) {
    return absl::UnavailableError(absl::StrCat(
        "said that it is ready without a JSON object of \"incarnation\" and \"address\": ", line.substr(0, 200)));
  }
  return endpoint;
}

class ChildEngine : public EngineProcess {
 public:
  ChildEngine(Executor* executor, Events events) : executor_(executor), events_(std::move(events)) {}

  ~ChildEngine() override {
    {
      std::lock_guard lock(watch_->mutex);
      watch_->executor = nullptr;
    }
    executor_->Cancel(tick_);
    executor_->Cancel(kill_);
    executor_->Cancel(watch_->told);
  }

  absl::Status Start(Command command) {
    PARKWAY_RETURN_IF_ERROR(ready_.Open());
    PARKWAY_RETURN_IF_ERROR(liveness_.Open());
    command.argv.push_back(absl::StrCat("--ready_fd=", kReadyFd));
    command.env.emplace_back(kLivenessVariable, absl::StrCat(kLivenessFd));
    Subprocess::Options options;
    options.argv = std::move(command.argv);
    options.env = std::move(command.env);
    options.fds = {{ready_.writer(), kReadyFd}, {liveness_.writer(), kLivenessFd}};
    if (command.arena.get() >= 0) {
      options.argv.push_back(absl::StrCat("--arena_fd=", kArenaFd));
      options.fds.emplace_back(command.arena.get(), kArenaFd);
    }
    oom_kills_ = OutOfMemoryKills();
    watch_->executor = executor_;
    watch_->engine = this;
    // The end is told by a timer's task: the thread that reaps must neither run ours nor start processes.
    PARKWAY_ASSIGN_OR_RETURN(process_, Subprocess::Start(std::move(options), [watch = watch_](ExitStatus status) {
                               std::lock_guard lock(watch->mutex);
                               if (watch->executor == nullptr) return;
                               watch->told = watch->executor->After(
                                   absl::ZeroDuration(), [engine = watch->engine, status] { engine->OnExit(status); });
                             }));
    ready_.CloseWriter();
    liveness_.CloseWriter();
    started_ = ticked_ = executor_->Now();
    tick_ = executor_->After(kReadyPoll, [this] { Tick(); });
    return absl::OkStatus();
  }

  int pid() const override { return process_->pid(); }

  void Stop(const absl::Status& why) override {
    if (cause_.ok()) cause_ = why;
    process_->Kill(SIGTERM);
    process_->Kill(SIGCONT);
    executor_->Cancel(kill_);
    kill_ = executor_->After(limits::kEngineStopGrace, [this] { process_->Kill(SIGKILL); });
  }

  void Kill(const absl::Status& why) override {
    if (cause_.ok()) cause_ = why;
    process_->Kill(SIGKILL);
  }

 private:
  // What the reaping thread may touch.
  struct Watch {
    std::mutex mutex;
    Executor* executor = nullptr;  // null: the engine object is gone
    ChildEngine* engine = nullptr;
    TimerId told = 0;
  };

  void Tick() {
    tick_ = executor_->After(is_ready_ ? limits::kHeartbeatPeriod : kReadyPoll, [this] { Tick(); });
    const absl::Time now = executor_->Now();
    const bool was_late = now - ticked_ > 3 * limits::kHeartbeatPeriod;  // this process itself stood still
    ticked_ = now;
    if (!liveness_.Read().empty() || (alive_ != absl::InfinitePast() && was_late)) alive_ = now;
    if (!is_ready_) ReadReady(now);
    if (alive_ != absl::InfinitePast() && now - alive_ > limits::kHeartbeatTimeout) {
      Kill(absl::UnavailableError(absl::StrCat("frozen: its process (", pid(), ") gave no sign of life for ",
                                               absl::FormatDuration(limits::kHeartbeatTimeout), ", and was killed")));
    }
  }

  void ReadReady(absl::Time now) {
    line_ += ready_.Read();
    const size_t end = line_.find('\n');
    if (end == std::string::npos) {
      if (line_.size() > kReadyLineBytes || now - started_ > limits::kEngineStartTimeout) {
        Kill(absl::UnavailableError(
            absl::StrCat("was not ready ", absl::FormatDuration(now - started_), " after its start, and was killed")));
      }
      return;
    }
    is_ready_ = true;
    absl::StatusOr<EngineEndpoint> endpoint = ParseReadyLine(line_.substr(0, end), pid());
    if (!endpoint.ok()) {
      Kill(endpoint.status());
    } else {
      unix_path_ = endpoint->unix_path();
      events_.on_ready(*endpoint);
    }
  }

  void OnExit(ExitStatus status) {
    executor_->Cancel(tick_);
    executor_->Cancel(kill_);
    if (cause_.ok()) cause_ = absl::UnavailableError(Describe(status));
    if (!unix_path_.empty()) unlink(unix_path_.c_str());
    const auto on_exit = std::move(events_.on_exit);
    const absl::Status cause = cause_;
    on_exit(cause);  // deletes this
  }

  std::string Describe(ExitStatus status) const {
    std::string words = absl::StrCat("its process (", pid(), ") ", status.signal != 0 ? "was " : "", status.words());
    if (status.signal != 0) {
      const char* name = sigabbrev_np(status.signal);
      if (name != nullptr) absl::StrAppend(&words, " (SIG", name, ")");
    }
    if (status.signal == SIGKILL && oom_kills_ >= 0 && OutOfMemoryKills() > oom_kills_) {
      absl::StrAppend(&words, "; out of memory: the kernel killed for lack of it in this control group meanwhile");
    }
    return words;
  }

  Executor* executor_;
  Events events_;
  Pipe ready_, liveness_;
  std::shared_ptr<Watch> watch_ = std::make_shared<Watch>();
  std::unique_ptr<Subprocess> process_;
  int64_t oom_kills_ = -1;
  std::string line_;
  std::string unix_path_;
  bool is_ready_ = false;
  absl::Time started_, ticked_;
  absl::Time alive_ = absl::InfinitePast();  // until its first byte
  absl::Status cause_;                       // when it was ended from here
  TimerId tick_ = 0, kill_ = 0;
};

}  // namespace

absl::StatusOr<std::unique_ptr<EngineProcess>> StartEngineProcess(Executor* executor, EngineProcess::Command command,
                                                                  EngineProcess::Events events) {
  auto engine = std::make_unique<ChildEngine>(executor, std::move(events));
  PARKWAY_RETURN_IF_ERROR(engine->Start(std::move(command)));
  return engine;
}

}  // namespace parkway::worker
