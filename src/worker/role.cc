#include "worker/role.h"

#include <dirent.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdlib>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "base/machine.h"
#include "base/random.h"
#include "base/run_in_task.h"
#include "base/shutdown.h"
#include "base/status.h"
#include "base/status_wire.h"
#include "manager/streams.h"
#include "manager/wait_log.h"
#include "worker/arena.h"
#include "worker/worker.h"

namespace parkway::worker {
namespace {

constexpr absl::Duration kRefusedRetry = absl::Seconds(1);
constexpr absl::Duration kGoodbyeTime = absl::Seconds(1);
constexpr const char* kVersion = "1";

// The worker behind its connection to the manager. Lives in tasks of one executor.
class ConnectedWorker {
 public:
  ConnectedWorker(Executor* executor, grpc::CompletionQueue* queue, const WorkerOptions& options, WorkerHello hello,
                  std::string socket_dir, std::function<void()> give_up)
      : executor_(executor),
        options_(options),
        socket_dir_(std::move(socket_dir)),
        give_up_(std::move(give_up)),
        arena_(options.arena_bytes > 0 ? options.arena_bytes : AvailableMemoryBytes() / 2),
        waiting_("the manager at " + options.manager_address),
        worker_(executor, std::move(hello),
                {.start_engine = [this](const StartEngine& start,
                                        EngineProcess::Events events) { return Launch(start, std::move(events)); },
                 .send = [this](const WorkerMessage& message) { stream_.Send(message); },
                 .lease_over = [this] { arena_.Clear(); }}),
        stream_(executor, queue, options.manager_address,
                [](Manager::Stub& stub, grpc::ClientContext* context, grpc::CompletionQueue* calls, void* tag) {
                  return stub.AsyncJoin(context, calls, tag);
                },
                {.hello = [this] { return Hello(); },
                 .on_message = [this](const ManagerToWorker& message) { OnMessage(message); },
                 .on_lost = [this](const absl::Status& why) { return OnLost(why); }}) {
    stream_.Connect();
    Tick();
  }
  ~ConnectedWorker() { executor_->Cancel(timer_); }

  // `done` comes when the engine is gone and the manager has been told, or does not listen.
  void Leave(const std::string& reason, std::function<void()> done) {
    left_ = std::move(done);
    told_ = !stream_.connected();
    worker_.Leave(reason, [this] {
      engine_gone_ = true;
      MaybeLeft();
    });
    stream_.Close();
    executor_->Cancel(timer_);
    timer_ = executor_->After(kGoodbyeTime, [this] {
      told_ = true;
      MaybeLeft();
    });
  }

  WorkerStatus Status() const {
    const WorkerHello& who = worker_.identity();
    WorkerStatus status;
    status.set_name(who.name());
    status.set_address(who.address());
    status.set_pid(who.pid());
    status.set_devices(who.devices());
    status.set_alive(true);
    const EngineState* engine = worker_.engine();
    status.set_state(!stream_.connected() ? "waits for the manager" : engine != nullptr ? "leased" : "idle");
    status.set_engine_up(engine != nullptr && engine->up());
    if (status.engine_up()) status.set_engine_pid(engine->endpoint().pid());
    return status;
  }

 private:
  WorkerMessage Hello() {
    if (options_.address.empty()) {
      const std::string address = AddressTowards(options_.manager_address);
      worker_.set_address(address.empty() ? HostName() : address);
    }
    WorkerMessage message;
    *message.mutable_hello() = worker_.Hello();
    return message;
  }

  void OnMessage(const ManagerToWorker& message) {
    if (message.has_refused()) {
      const absl::Status why = FromProto(message.refused());
      LOG(ERROR) << "The manager refuses this worker: " << why.message();
      refused_ = true;
      if (refused_since_ == absl::InfiniteFuture()) refused_since_ = executor_->Now();
      if (executor_->Now() - refused_since_ >= limits::kRefusedWorkerWait) {
        LOG(ERROR) << "The worker ends, since the manager kept refusing it for "
                   << absl::FormatDuration(limits::kRefusedWorkerWait) << ".";
        give_up_();
      }
      return;
    }
    waiting_.Over();
    if (message.has_seat()) {
      refused_since_ = absl::InfiniteFuture();
      LOG(INFO) << "Joined the manager at " << options_.manager_address << " as host " << message.seat().host()
                << " of " << message.seat().slice() << ".";
    }
    worker_.OnMessage(message);
  }

  void MaybeLeft() {
    if (left_ && told_ && engine_gone_) std::exchange(left_, nullptr)();
  }

  absl::Duration OnLost(const absl::Status& why) {
    if (left_) {
      told_ = true;
      MaybeLeft();
      return limits::kRetryPeriod;
    }
    if (std::exchange(refused_, false)) return kRefusedRetry;
    waiting_.Still(executor_->Now(), why);
    return limits::kRetryPeriod;
  }

  void Tick() {
    timer_ = executor_->After(limits::kHeartbeatPeriod, [this] { Tick(); });
    if (!stream_.connected()) return;
    WorkerMessage message;
    message.mutable_heartbeat()->set_number(++beats_);
    stream_.Send(message);
  }

  absl::StatusOr<std::unique_ptr<EngineProcess>> Launch(const StartEngine& start, EngineProcess::Events events) {
    EngineProcess::Command command;
    command.argv = options_.engine_command;
    if (command.argv.empty()) command.argv = {"/proc/self/exe", "engine"};
    command.argv.push_back(absl::StrCat("--engine=", options_.engine));
    command.argv.push_back(absl::StrCat("--devices=", start.devices()));
    command.argv.push_back(absl::StrCat("--host=", worker_.identity().address()));
    if (options_.memory_bytes > 0) command.argv.push_back(absl::StrCat("--memory_bytes=", options_.memory_bytes));
    if (!socket_dir_.empty()) command.argv.push_back(absl::StrCat("--unix_dir=", socket_dir_));
    command.env = {{"PARKWAY_ENGINE_TOKEN", absl::BytesToHexString(start.token())}};
    PARKWAY_ASSIGN_OR_RETURN(command.arena, arena_.Serve(start.lease()));
    return StartEngineProcess(executor_, std::move(command), std::move(events));
  }

  Executor* executor_;
  const WorkerOptions options_;
  const std::string socket_dir_;
  std::function<void()> give_up_;
  Arena arena_;
  manager::WaitLog waiting_;
  bool refused_ = false;
  std::function<void()> left_;
  bool told_ = false;
  bool engine_gone_ = false;
  absl::Time refused_since_ = absl::InfiniteFuture();
  uint64_t beats_ = 0;
  TimerId timer_ = 0;
  Worker worker_;
  manager::ReconnectingStream<WorkerMessage, ManagerToWorker> stream_;
};

// The worker's own port tells its status; whoever only wants to see it open does.
class StatusService : public Manager::CallbackService {
 public:
  explicit StatusService(Executor* executor) : executor_(executor) {}
  void set_worker(ConnectedWorker* worker) { worker_ = worker; }  // a task of the executor

  grpc::ServerUnaryReactor* Status(grpc::CallbackServerContext* context, const ManagerStatusRequest*,
                                   ManagerStatus* reply) override {
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    executor_->Post([this, reactor, reply] {
      if (worker_ != nullptr) *reply->add_slices()->add_workers() = worker_->Status();
      reactor->Finish(grpc::Status::OK);
    });
    return reactor;
  }

 private:
  Executor* executor_;
  ConnectedWorker* worker_ = nullptr;
};

void EmptySocketDir(const std::string& path) {
  DIR* dir = opendir(path.c_str());
  if (dir == nullptr) return;
  while (const dirent* entry = readdir(dir)) {
    if (entry->d_type == DT_SOCK) unlinkat(dirfd(dir), entry->d_name, 0);
  }
  closedir(dir);
}

// A directory of this user's alone for its engines' unix sockets, the same whenever a worker has this port. Empty, so
// that engines listen on TCP only, when it can't be had.
std::string MakeSocketDir(int port) {
  const char* base = std::getenv("TMPDIR");
  const std::string path =
      absl::StrCat(base != nullptr && *base != '\0' ? base : "/tmp", "/parkway-worker-", getuid(), "-", port);
  mkdir(path.c_str(), 0700);
  struct stat info {};
  if (lstat(path.c_str(), &info) != 0 || !S_ISDIR(info.st_mode) || info.st_uid != getuid() ||
      (info.st_mode & 077) != 0) {
    LOG(WARNING) << path << " can't be made, or is somebody else's; engines listen on TCP alone.";
    return "";
  }
  EmptySocketDir(path);  // of a worker that was killed
  return path;
}

void RemoveSocketDir(const std::string& path) {
  if (path.empty()) return;
  EmptySocketDir(path);
  rmdir(path.c_str());
}

int Number(const char* variable) {
  int value = -1;
  const char* text = std::getenv(variable);
  return text != nullptr && absl::SimpleAtoi(text, &value) && value >= 0 ? value : -1;
}

WorkerHello MakeHello(const WorkerOptions& options, int port) {
  WorkerHello hello;
  hello.set_name(options.name.empty() ? absl::StrCat(HostName(), ":", port) : options.name);
  hello.set_incarnation(RandomUint64());
  hello.set_address(options.address);
  hello.set_machine(MachineIdentity());
  hello.set_platform(options.platform);
  hello.set_devices(options.devices);
  hello.set_pid(getpid());
  hello.set_version(kVersion);
  hello.set_slice(options.slice);
  int host = options.host;
  if (const int slice = Number("MEGASCALE_SLICE_ID"); hello.slice().empty() && slice >= 0) {
    hello.set_slice(absl::StrCat("slice-", slice));
    if (host < 0) host = Number("TPU_WORKER_ID");
  }
  if (host >= 0) hello.set_host(host);
  return hello;
}

}  // namespace

int RunWorkerRole(const WorkerOptions& options) {
  ShutdownSignals signals;
  for (size_t i = 0; i < options.argv.size(); ++i) LOG(INFO) << "argv[" << i << "]: '" << options.argv[i] << "'";
  if (options.manager_address.rfind(':') == std::string::npos) {
    LOG(ERROR) << "The worker can't start: --resource_manager_address='" << options.manager_address
               << "' is not host:port";
    return 1;
  }
  std::unique_ptr<Executor> executor = MakeSerialExecutor();
  StatusService service(executor.get());
  absl::StatusOr<manager::Listening> listening = manager::Serve(&service, options.bind_address, options.server_port);
  if (!listening.ok()) {
    LOG(ERROR) << "The worker can't start: " << listening.status().message();
    return 1;
  }
  LOG(INFO) << "Pathways Server serving on " << options.bind_address << ":" << listening->port;

  const std::string socket_dir = MakeSocketDir(listening->port);
  std::atomic<bool> gave_up = false;
  manager::CompletionThread calls;
  std::unique_ptr<ConnectedWorker> worker;
  RunInTask(*executor, [&] {
    worker = std::make_unique<ConnectedWorker>(executor.get(), calls.queue(), options,
                                               MakeHello(options, listening->port), socket_dir, [&] {
                                                 gave_up = true;
                                                 signals.Raise(SIGTERM);
                                               });
    service.set_worker(worker.get());
  });

  const std::string signal = signals.Wait();
  LOG(INFO) << "The worker ends: " << (gave_up ? "refused by the manager" : signal);
  absl::Notification left;
  executor->Post([&] { worker->Leave(signal, [&] { left.Notify(); }); });
  left.WaitForNotification();
  RunInTask(*executor, [&] {
    service.set_worker(nullptr);
    worker.reset();
  });
  RemoveSocketDir(socket_dir);
  listening->server->Shutdown(std::chrono::system_clock::now());
  listening->server->Wait();
  return gave_up ? 1 : 0;
}

}  // namespace parkway::worker
