// A program that never ends must not hold a host for ever. When its session is gone and it still runs after
// limits::kEndlessProgramGrace, the arrays of other sessions on its hosts are copied to the worker's arena, the engines
// are started again, and take the arrays over under the same ids; nobody but the dead session loses an array that was
// ready and could be copied within limits::kEvictionCopies. Launches of others that are queued behind it, and so don't
// end within limits::kEvictionDrain, are sent to the new engine again (engines.h); what can't be, a launch over several
// hosts or one that was given its inputs, fails with ABORTED.
//
// Owned by the core; used inside tasks of its executor only.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <utility>

#include "runtime/session_impl.h"

namespace parkway::runtime {

class Eviction {
 public:
  explicit Eviction(CoreState* core) : core_(core) {}
  ~Eviction() { *alive_ = false; }

  void OnSessionClosed(uint64_t session);
  void OnEngineUp(int host) { hosts_.erase(host); }
  // It will not come back, and nothing that was kept for it will.
  void OnHostGone(int host) { hosts_.erase(host); }
  // Was that shard copied, and is there for the next engine?
  bool Spares(const Buffers& buffers, int device) const;

 private:
  struct Host {
    uint64_t incarnation = 0;
    int copies_left = 0;
    bool restarting = false;
    std::set<std::pair<uint64_t, int>> kept;  // array and device
  };

  void Start(uint64_t session, int host);
  // What others have in flight there gets until then to end.
  void Drain(uint64_t session, int host, uint64_t incarnation, absl::Time until);
  void CopyOut(uint64_t session, int host);
  void Restart(int host);

  CoreState* core_;
  std::map<int, Host> hosts_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace parkway::runtime
