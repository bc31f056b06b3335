#include "engine/jaxlib/coordination.h"

#include <grpcpp/grpcpp.h>

#include <atomic>

#include "absl/random/random.h"
#include "absl/strings/str_cat.h"
#include "base/grpc_status.h"
#include "base/status.h"
#include "src/engine/jaxlib/coordination.grpc.pb.h"

namespace parkway::engine {
namespace {

namespace wire = xla::coordination;
using grpc::CallbackServerContext;
using grpc::ServerUnaryReactor;

grpc::Status UnknownClient() {
  return grpc::Status(grpc::StatusCode::FAILED_PRECONDITION, "this client never registered here");
}

ServerUnaryReactor* Answer(CallbackServerContext* context, const grpc::Status& status) {
  ServerUnaryReactor* reactor = context->DefaultReactor();
  reactor->Finish(status);
  return reactor;
}

// A GetKeyValue that waits for its key. Finished by whoever takes it out of the store: the key, the store's end, or the
// client that gave up.
class KeyReactor : public ServerUnaryReactor {
 public:
  KeyReactor(std::shared_ptr<KeyStore> store, const wire::GetKeyValueRequest& request,
             wire::GetKeyValueResponse& response)
      : store_(std::move(store)) {
    waiter_ = store_->Wait(request.key(), [this, key = request.key(), &response](absl::StatusOr<std::string> value) {
      if (!value.ok()) return Finish(ToGrpc(value.status()));
      response.mutable_kv()->set_key(key);
      response.mutable_kv()->set_value(*std::move(value));
      Finish(grpc::Status::OK);
    });
  }
  void OnCancel() override {
    if (store_->Forget(waiter_)) Finish(grpc::Status::CANCELLED);
  }
  void OnDone() override { delete this; }

 private:
  const std::shared_ptr<KeyStore> store_;
  std::atomic<uint64_t> waiter_{0};
};

// A call that lasts as long as its client.
class LifetimeReactor : public ServerUnaryReactor {
 public:
  LifetimeReactor(CoordinationServer& server, uint64_t incarnation) : server_(server), incarnation_(incarnation) {}
  void OnCancel() override {
    server_.Drop(incarnation_);
    Finish(grpc::Status::CANCELLED);
  }
  void OnDone() override { delete this; }

 private:
  CoordinationServer& server_;
  const uint64_t incarnation_;
};

}  // namespace

class CoordinationServer::Service : public wire::CoordinationService::CallbackService {
 public:
  explicit Service(CoordinationServer& server) : server_(server) {}

  ServerUnaryReactor* RegisterTask(CallbackServerContext* context, const wire::RegisterTaskRequest* request,
                                   wire::RegisterTaskResponse* response) override {
    response->set_service_incarnation(incarnation_);
    const bool known = server_.Register(request->incarnation(), request->source_task_id());
    return Answer(context, known ? grpc::Status::OK : UnknownClient());
  }

  ServerUnaryReactor* Heartbeat(CallbackServerContext* context, const wire::HeartbeatRequest* /*request*/,
                                wire::HeartbeatResponse* response) override {
    response->set_service_incarnation(incarnation_);
    return Answer(context, grpc::Status::OK);
  }

  ServerUnaryReactor* ShutdownTask(CallbackServerContext* context, const wire::ShutdownTaskRequest* /*request*/,
                                   wire::ShutdownTaskResponse* /*response*/) override {
    return Answer(context, grpc::Status::OK);
  }

  ServerUnaryReactor* PollForError(CallbackServerContext* /*context*/, const wire::PollForErrorRequest* request,
                                   wire::PollForErrorResponse* /*response*/) override {
    return new LifetimeReactor(server_, request->incarnations().task_incarnation());
  }

  ServerUnaryReactor* InsertKeyValue(CallbackServerContext* context, const wire::InsertKeyValueRequest* request,
                                     wire::InsertKeyValueResponse* /*response*/) override {
    auto store = server_.StoreOf(request->incarnations().task_incarnation());
    if (store != nullptr) store->InsertOwn(request->kv().key(), request->kv().value());
    return Answer(context, store != nullptr ? grpc::Status::OK : UnknownClient());
  }

  ServerUnaryReactor* GetKeyValue(CallbackServerContext* context, const wire::GetKeyValueRequest* request,
                                  wire::GetKeyValueResponse* response) override {
    auto store = server_.StoreOf(request->incarnations().task_incarnation());
    if (store == nullptr) return Answer(context, UnknownClient());
    return new KeyReactor(std::move(store), *request, *response);
  }

  ServerUnaryReactor* TryGetKeyValue(CallbackServerContext* context, const wire::TryGetKeyValueRequest* request,
                                     wire::TryGetKeyValueResponse* response) override {
    auto store = server_.StoreOf(request->incarnations().task_incarnation());
    if (store == nullptr) return Answer(context, UnknownClient());
    absl::StatusOr<std::string> value = store->Find(request->key());
    if (!value.ok()) return Answer(context, ToGrpc(value.status()));
    response->mutable_kv()->set_key(request->key());
    response->mutable_kv()->set_value(*std::move(value));
    return Answer(context, grpc::Status::OK);
  }

  ServerUnaryReactor* DeleteKeyValue(CallbackServerContext* context, const wire::DeleteKeyValueRequest* request,
                                     wire::DeleteKeyValueResponse* /*response*/) override {
    auto store = server_.StoreOf(request->incarnations().task_incarnation());
    if (store != nullptr) store->Erase(request->key());
    return Answer(context, store != nullptr ? grpc::Status::OK : UnknownClient());
  }

 private:
  CoordinationServer& server_;
  const uint64_t incarnation_ = absl::Uniform<uint64_t>(absl::BitGen());
};

absl::StatusOr<CoordinationServer*> CoordinationServer::Get() {
  static CoordinationServer* server = new CoordinationServer();
  static const auto* status = new absl::Status(server->Start());
  if (!status->ok()) return *status;
  return server;
}

absl::Status CoordinationServer::Start() {
  auto* service = new Service(*this);  // like the server, for ever
  int port = 0;
  grpc::ServerBuilder builder;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  builder.RegisterService(service);
  std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  if (server == nullptr || port == 0) {
    return absl::FailedPreconditionError("no port on loopback for the coordination of collectives");
  }
  (void)server.release();  // it serves until the process ends
  address_ = absl::StrCat("127.0.0.1:", port);
  return absl::OkStatus();
}

absl::Status CoordinationServer::Connect(int rank, std::shared_ptr<KeyStore> store,
                                         const std::function<absl::Status()>& connect) {
  absl::MutexLock one_at_a_time(&connect_mutex_);
  {
    absl::MutexLock lock(&mutex_);
    expected_ = std::move(store);
    expected_rank_ = rank;
  }
  absl::Status status = connect();
  absl::MutexLock lock(&mutex_);
  if (status.ok() && expected_ != nullptr) status = absl::UnknownError("XLA's client didn't register with its service");
  expected_ = nullptr;
  return status;
}

bool CoordinationServer::Register(uint64_t incarnation, int rank) {
  absl::MutexLock lock(&mutex_);
  if (stores_.contains(incarnation)) return true;  // a retry
  if (expected_ == nullptr || rank != expected_rank_) return false;
  stores_.emplace(incarnation, std::move(expected_));
  expected_ = nullptr;
  return true;
}

std::shared_ptr<KeyStore> CoordinationServer::StoreOf(uint64_t incarnation) const {
  absl::MutexLock lock(&mutex_);
  auto found = stores_.find(incarnation);
  return found == stores_.end() ? nullptr : found->second;
}

void CoordinationServer::Drop(uint64_t incarnation) {
  absl::MutexLock lock(&mutex_);
  stores_.erase(incarnation);
}

size_t CoordinationServer::clients() const {
  absl::MutexLock lock(&mutex_);
  return stores_.size();
}

}  // namespace parkway::engine
