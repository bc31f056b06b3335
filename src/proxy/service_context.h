// What all calls of the service share. Internal to the gRPC side of the proxy.
#pragma once

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <memory>
#include <string>

#include "base/executor.h"
#include "base/limits.h"
#include "proto/ifrt/grpc_ifrt_service.grpc.pb.h"
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
};

inline grpc::Status ToGrpc(const absl::Status& status) {
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()), std::string(status.message()));
}

}  // namespace parkway::proxy
