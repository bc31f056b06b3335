// The door: the IFRT proxy service on a port and on a unix socket. One completion queue and one thread poll all of it,
// streams and host buffers alike (measured: any second poller costs more than it brings), and run the core's tasks
// where it is idle. What would block does not belong here.
//
// Made, started and destroyed by one thread.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/executor.h"
#include "base/limits.h"
#include "proxy/version.h"
#include "runtime/core.h"

namespace grpc {
class CompletionQueue;
}

namespace parkway::proxy {

class GrpcServer {
 public:
  struct Options {
    std::string listen;              // "host:port"; port 0 picks one
    std::string unix_path;           // empty: none
    std::string transfer_directory;  // empty: none
    VersionCaps versions;
    absl::Duration stall = limits::kHostBufferStall;
  };

  // FAILED_PRECONDITION when it can't listen there. Executor and core outlive the server.
  static absl::StatusOr<std::unique_ptr<GrpcServer>> Start(Options options, Executor* executor, runtime::Core* core);
  // Ends all sessions and waits for them.
  virtual ~GrpcServer() = default;

  virtual int port() const = 0;
  // Polled until the server goes: the process's other calls share it, and must have been ended before that.
  virtual grpc::CompletionQueue* queue() = 0;
  virtual int sessions() const = 0;
};

}  // namespace parkway::proxy
