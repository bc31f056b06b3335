#include "manager/service.h"

#include <map>
#include <mutex>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "base/grpc_status.h"
#include "base/random.h"
#include "base/status.h"
#include "manager/manager_state.h"
#include "manager/store.h"
#include "manager/streams.h"

namespace parkway::manager {
namespace {

constexpr absl::Duration kFlushTime = absl::Seconds(2);  // for what an ended stream has still to send

using WorkerStream = ServerStream<WorkerMessage, ManagerToWorker>;
using ProxyStream = ServerStream<ProxyMessage, ManagerToProxy>;

// A stream beyond the limit: ended at once.
template <class In, class Out>
class RefusedStream : public grpc::ServerBidiReactor<In, Out> {
 public:
  RefusedStream() {
    this->Finish(grpc::Status(grpc::StatusCode::RESOURCE_EXHAUSTED,
                              absl::StrCat("the manager has ", limits::kMaxManagerStreams, " connections already")));
  }
  void OnDone() override { delete this; }
};

}  // namespace

class ManagerServer::Impl : public Manager::CallbackService, public ManagerOutput {
 public:
  Impl(const SliceType& type, int slices, std::unique_ptr<Store> store)
      : executor_(MakeSerialExecutor()), store_(std::move(store)) {
    ManagerStateOptions options;
    options.expected_type = type;
    options.expected_slices = slices;
    options.random = RandomUint64;
    if (store_ != nullptr) {
      options.record = store_->record();
      options.save = [this](const ManagerRecord& record) {
        const absl::Status saved = store_->Save(record);
        if (!saved.ok()) LOG(ERROR) << "A manager that starts anew will not know the latest: " << saved.message();
      };
    }
    state_ = std::make_unique<ManagerState>(executor_.get(), std::move(options), this);
  }

  ~Impl() override {
    if (listening_.server) {
      listening_.server->Shutdown(std::chrono::system_clock::now());
      listening_.server->Wait();
    }
    absl::Notification gone;
    executor_->Post([&] {
      state_.reset();
      gone.Notify();
    });
    gone.WaitForNotification();
    executor_.reset();
  }

  absl::Status Listen(const std::string& host, int port) {
    PARKWAY_ASSIGN_OR_RETURN(listening_, Serve(this, host, port));
    return absl::OkStatus();
  }
  int port() const { return listening_.port; }

  // ---- The service: gRPC's threads.
  grpc::ServerBidiReactor<WorkerMessage, ManagerToWorker>* Join(grpc::CallbackServerContext* context) override {
    return Open(context, &workers_, &ManagerState::OnWorkerOpened, &ManagerState::OnWorker);
  }
  grpc::ServerBidiReactor<ProxyMessage, ManagerToProxy>* Lease(grpc::CallbackServerContext* context) override {
    return Open(context, &proxies_, &ManagerState::OnProxyOpened, &ManagerState::OnProxy);
  }
  grpc::ServerUnaryReactor* Status(grpc::CallbackServerContext* context, const ManagerStatusRequest*,
                                   ManagerStatus* reply) override {
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    executor_->Post([this, reactor, reply] {
      *reply = state_->Status();
      reactor->Finish(grpc::Status::OK);
    });
    return reactor;
  }

  grpc::ServerUnaryReactor* Cancel(grpc::CallbackServerContext* context, const CancelRequest* request,
                                   CancelReply*) override {
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    executor_->Post([this, reactor, request] { reactor->Finish(ToGrpc(state_->Cancel(*request))); });
    return reactor;
  }

  // ---- ManagerOutput: the executor's tasks.
  void ToWorker(StreamId stream, const ManagerToWorker& message) override {
    std::lock_guard lock(mutex_);
    if (auto it = workers_.find(stream); it != workers_.end()) it->second->Send(message);
  }
  void ToProxy(StreamId stream, const ManagerToProxy& message) override {
    std::lock_guard lock(mutex_);
    if (auto it = proxies_.find(stream); it != proxies_.end()) it->second->Send(message);
  }
  void End(StreamId stream, const absl::Status& why) override {
    std::lock_guard lock(mutex_);
    if (auto it = workers_.find(stream); it != workers_.end()) it->second->End(ToGrpc(why));
    if (auto it = proxies_.find(stream); it != proxies_.end()) it->second->End(ToGrpc(why));
    // A frozen peer takes nothing.
    executor_->After(kFlushTime, [this, stream] {
      std::lock_guard lock(mutex_);
      if (auto it = workers_.find(stream); it != workers_.end()) it->second->Cancel();
      if (auto it = proxies_.find(stream); it != proxies_.end()) it->second->Cancel();
    });
  }

 private:
  template <class In, class Out>
  grpc::ServerBidiReactor<In, Out>* Open(grpc::CallbackServerContext* context,
                                         std::map<StreamId, ServerStream<In, Out>*>* streams,
                                         void (ManagerState::*opened)(StreamId),
                                         void (ManagerState::*received)(StreamId, const In&)) {
    StreamId id;
    ServerStream<In, Out>* stream;
    {
      std::lock_guard lock(mutex_);
      if (workers_.size() + proxies_.size() >= limits::kMaxManagerStreams) return new RefusedStream<In, Out>;
      id = next_stream_++;
      typename ServerStream<In, Out>::Handlers handlers;
      handlers.on_message = [this, id, streams, received](In message) {
        executor_->Post([this, id, streams, received, message = std::move(message)] {
          (state_.get()->*received)(id, message);
          std::lock_guard lock(mutex_);
          if (auto it = streams->find(id); it != streams->end()) it->second->Next();
        });
      };
      handlers.on_end = [this, id] {
        executor_->Post(
            [this, id] { state_->OnClosed(id, "its connection broke: its process has ended, or the network"); });
      };
      handlers.gone = [this, id, streams] {
        std::lock_guard lock(mutex_);
        streams->erase(id);
      };
      stream = new ServerStream<In, Out>(context, std::move(handlers));
      streams->emplace(id, stream);
    }
    executor_->Post([this, id, opened] { (state_.get()->*opened)(id); });
    stream->Next();
    return stream;
  }

  std::unique_ptr<Executor> executor_;
  std::unique_ptr<Store> store_;  // touched by the executor's tasks alone
  std::unique_ptr<ManagerState> state_;
  std::mutex mutex_;  // guards the streams' maps, not the state
  std::map<StreamId, WorkerStream*> workers_;
  std::map<StreamId, ProxyStream*> proxies_;
  StreamId next_stream_ = 1;
  Listening listening_;
};

ManagerServer::ManagerServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
ManagerServer::~ManagerServer() = default;

absl::StatusOr<std::unique_ptr<ManagerServer>> ManagerServer::Start(const std::string& host, int port,
                                                                    const SliceType& type, int slices,
                                                                    const std::string& state_dir) {
  std::unique_ptr<Store> store;
  if (!state_dir.empty()) {
    PARKWAY_ASSIGN_OR_RETURN(store, Store::Open(state_dir));
  }
  auto impl = std::make_unique<Impl>(type, slices, std::move(store));
  PARKWAY_RETURN_IF_ERROR(impl->Listen(host, port));
  return std::unique_ptr<ManagerServer>(new ManagerServer(std::move(impl)));
}

int ManagerServer::port() const { return impl_->port(); }

}  // namespace parkway::manager
