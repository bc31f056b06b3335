// The calls beside a session's stream: version, and the bytes of host buffers. Each kind waits for the next client's
// call once it is accepted for the first time. All of it runs on the polling thread.
#pragma once

#include <memory>

#include "absl/container/flat_hash_set.h"
#include "proxy/service_context.h"

namespace parkway::proxy {

class StoreCall;

// Stores that are under way, to find those that stall. Polling thread.
class StoreWatch {
 public:
  void Add(StoreCall* store) { stores_.insert(store); }
  void Remove(StoreCall* store) { stores_.erase(store); }
  // Ends the Stores that have brought no byte since `limit`.
  void CancelStalled(absl::Time limit);
  size_t size() const { return stores_.size(); }

 private:
  absl::flat_hash_set<StoreCall*> stores_;
};

// Both outlive the calls, which end with the server.
void AcceptBufferCalls(ServiceContext& context, StoreWatch& stores);

}  // namespace parkway::proxy
