// What all gRPC channels and servers of the manager's service have in common: no credentials, no proxy of the
// environment, dead peers noticed by keepalive, and a port that is one process's alone.
#pragma once

#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace parkway::manager {

// Connects lazily, and tries again every limits::kRetryPeriod to one second. One for each address, kept until the
// process ends: the last reference of a channel must not be dropped by one of gRPC's threads, which is where calls end.
std::shared_ptr<grpc::Channel> ManagerChannel(const std::string& address);

// A completion queue of CompletionTags and the thread that runs them, for processes that have no other.
class CompletionThread {
 public:
  CompletionThread();
  ~CompletionThread();  // waits for what is under way: whoever made calls must be gone
  grpc::CompletionQueue* queue() { return &queue_; }

 private:
  grpc::CompletionQueue queue_;
  std::thread thread_;
};

struct Listening {
  std::unique_ptr<grpc::Server> server;
  int port = 0;
};
// Serves on "`host`:`port`" ("[::]" is every address; port 0 picks one). UNAVAILABLE saying why it can't: in use, no
// such address, no permission.
absl::StatusOr<Listening> Serve(grpc::Service* service, const std::string& host, int port);

absl::Status FromGrpc(const grpc::Status& status);

}  // namespace parkway::manager
