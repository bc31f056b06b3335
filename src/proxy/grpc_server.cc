#include "proxy/grpc_server.h"

#include <grpcpp/alarm.h>
#include <grpcpp/grpcpp.h>
#include <sys/stat.h>

#include <chrono>
#include <mutex>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/status.h"
#include "proxy/buffer_calls.h"
#include "proxy/grpc_op.h"
#include "proxy/service_context.h"
#include "proxy/session_stream.h"

namespace parkway::proxy {
namespace {

constexpr int kMaxFrameBytes = 1 << 20;  // measured: a quarter more for large host buffers than the default

class Server final : public GrpcServer, private Tag {
 public:
  Server(Options options, Executor* executor, runtime::Core* core) : options_(std::move(options)) {
    context_.executor = executor;
    context_.core = core;
    context_.versions = options_.versions;
    context_.stall = options_.stall;
  }

  ~Server() override {
    if (server_ == nullptr) return;
    {
      std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    server_->Shutdown(std::chrono::system_clock::now());  // cancels what is under way
    context_.calls.WaitForNone();
    sweep_.Cancel();
    context_.flushes.Stop();
    queue_->Shutdown();
    thread_.join();
  }

  absl::Status Listen() {
    if (!options_.transfer_directory.empty()) {
      PARKWAY_ASSIGN_OR_RETURN(directory_, TransferDirectory::Open(options_.transfer_directory));
      context_.directory = directory_.get();
    }
    grpc::ServerBuilder builder;
    builder.AddListeningPort(options_.listen, grpc::InsecureServerCredentials(), &port_);
    if (!options_.unix_path.empty()) {
      builder.AddListeningPort("unix:" + options_.unix_path, grpc::InsecureServerCredentials());
    }
    builder.SetMaxReceiveMessageSize(-1);
    builder.SetMaxSendMessageSize(-1);
    builder.AddChannelArgument("grpc.http2.max_frame_size", kMaxFrameBytes);
    builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
    const int keepalive_ms = static_cast<int>(absl::ToInt64Milliseconds(limits::kClientKeepalive));
    builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, keepalive_ms);
    builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, keepalive_ms);
    builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
    builder.RegisterService(&context_.service);
    queue_ = builder.AddCompletionQueue();
    context_.queue = queue_.get();
    context_.flushes.Start(queue_.get());
    server_ = builder.BuildAndStart();
    if (server_ == nullptr) {
      queue_->Shutdown();
      return absl::FailedPreconditionError(
          absl::StrCat("can't listen on ", options_.listen,
                       options_.unix_path.empty() ? "" : absl::StrCat(" and unix:", options_.unix_path),
                       ": is another process listening there?"));
    }
    if (!options_.unix_path.empty()) chmod(options_.unix_path.c_str(), S_IRUSR | S_IWUSR);
    SessionStream::Accept(context_);
    AcceptBufferCalls(context_, stores_);
    SetSweep();
    thread_ = std::thread([this] { Poll(); });
    return absl::OkStatus();
  }

  int port() const override { return port_; }
  grpc::CompletionQueue* queue() override { return queue_.get(); }
  int sessions() const override { return context_.sessions; }

 private:
  void Poll() {
    void* tag = nullptr;
    bool ok = false;
    context_.flushes.SetPoller();
    while (true) {
      const auto next = queue_->AsyncNext(&tag, &ok, context_.flushes.Next());
      if (next == grpc::CompletionQueue::SHUTDOWN) return;
      if (next == grpc::CompletionQueue::GOT_EVENT) static_cast<Tag*>(tag)->Run(ok);
      context_.flushes.FlushDue();
    }
  }

  // Looks for host buffers that don't come, several times in the time that they have.
  void SetSweep() {
    std::lock_guard lock(mutex_);
    if (stopping_) return;
    sweep_.Set(queue_.get(), std::chrono::system_clock::now() + absl::ToChronoMicroseconds(options_.stall / 4),
               static_cast<Tag*>(this));
  }
  void Run(bool ok) override {
    if (!ok) return;
    const absl::Time limit = absl::Now() - options_.stall;
    stores_.CancelStalled(limit);
    context_.buffers.FailOverdue(limit);
    SetSweep();
  }

  const Options options_;
  ServiceContext context_;
  StoreWatch stores_;
  std::unique_ptr<TransferDirectory> directory_;
  std::unique_ptr<grpc::ServerCompletionQueue> queue_;
  std::unique_ptr<grpc::Server> server_;
  grpc::Alarm sweep_;
  std::mutex mutex_;
  bool stopping_ = false;
  int port_ = 0;
  std::thread thread_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<GrpcServer>> GrpcServer::Start(Options options, Executor* executor,
                                                              runtime::Core* core) {
  auto server = std::make_unique<Server>(std::move(options), executor, core);
  PARKWAY_RETURN_IF_ERROR(server->Listen());
  return server;
}

}  // namespace parkway::proxy
