// What all calls of the service share. Internal to the gRPC side of the proxy.
#pragma once

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <memory>
#include <string>

#include "absl/synchronization/mutex.h"
#include "base/executor.h"
#include "base/grpc_status.h"
#include "base/limits.h"
#include "proto/ifrt/grpc_ifrt_service.grpc.pb.h"
#include "proxy/flush_queue.h"
#include "proxy/host_buffers.h"
#include "proxy/transfer_directory.h"
#include "proxy/version.h"
#include "runtime/core.h"

namespace parkway::proxy {

// Host buffers come and go as raw bytes, so that nothing copies them on the way.
using IfrtService = xla::ifrt::proxy::GrpcIfrtService;
using AsyncService = IfrtService::WithAsyncMethod_GetVersion<
    IfrtService::WithAsyncMethod_IfrtSession<IfrtService::WithRawMethod_HostBufferStore<
        IfrtService::WithRawMethod_HostBufferLookup<IfrtService::WithAsyncMethod_HostBufferDelete<
            IfrtService::WithAsyncMethod_HostBufferReadFromDisk<IfrtService::Service>>>>>>;

// Calls that are there, waiting ones too: the queue may be shut down only when none can start an operation any more.
class CallCount {
 public:
  void Add(int n) {
    absl::MutexLock lock(&mutex_);
    count_ += n;
  }
  void WaitForNone() {
    absl::MutexLock lock(&mutex_);
    mutex_.Await(absl::Condition(
        +[](int* count) { return *count == 0; }, &count_));
  }

 private:
  absl::Mutex mutex_;
  int count_ = 0;
};

struct ServiceContext {
  Executor* executor = nullptr;
  runtime::Core* core = nullptr;
  TransferDirectory* directory = nullptr;  // null: the proxy was given none
  VersionCaps versions;
  absl::Duration stall = limits::kHostBufferStall;

  AsyncService service;
  grpc::ServerCompletionQueue* queue = nullptr;
  HostBufferTable buffers;
  std::atomic<int> sessions{0};
  CallCount calls;
  FlushQueue flushes;
};

// A member of each call, before all others, so that it is the last to go.
class Counted {
 public:
  explicit Counted(ServiceContext& context) : count_(context.calls) { count_.Add(1); }
  ~Counted() { count_.Add(-1); }
  Counted(const Counted&) = delete;

 private:
  CallCount& count_;
};

}  // namespace parkway::proxy
