// A proxy's side of its lease: asks the manager for slices, for ever, and tells what becomes of them. While the manager
// is away nothing is told and the engines go on; a manager that comes back gets the lease as it was (see
// manager_state.h). The lease ends with this object.
//
// Everything, also construction and destruction, happens in tasks of one executor; so do the handlers.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "base/executor.h"

namespace grpc {
class CompletionQueue;
}

namespace parkway {
class LeaseRequest;
class Placement;
class ProxyReport;
}  // namespace parkway

namespace parkway::manager {

class LeaseClient {
 public:
  struct Handlers {
    // The whole lease, after every change. Another `lease` than before: the old one is gone, with all that lay there.
    // Without slices: still waiting, `waiting_for` says what for.
    std::function<void(const Placement& placement)> on_placement;
    // The manager will not have this request; it is not asked again. What to change stands in the message.
    std::function<void(const absl::Status& why)> on_refused;
    // Somebody wants the programs of that session to end; 0: of all.
    std::function<void(uint64_t session)> on_cancel;
    // What the manager is told each second; may be empty.
    std::function<void(ProxyReport* report)> report;
  };

  // `queue`: a completion queue whose CompletionTags somebody runs; it may be shut down once the client is gone.
  LeaseClient(Executor* executor, grpc::CompletionQueue* queue, const std::string& manager_address,
              const LeaseRequest& request, Handlers handlers);
  ~LeaseClient();
  LeaseClient(const LeaseClient&) = delete;

  // Has the engine killed and started again, if `incarnation` is still the one that runs. The placement tells when.
  void RestartEngine(uint64_t incarnation, const std::string& reason);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace parkway::manager
