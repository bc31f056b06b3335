// A program that never ends must not hold a host for ever. When its session is gone, or somebody cancelled it, and it
// still runs after limits::kEndlessProgramGrace, the arrays on its hosts are copied to the worker's arena, the engines
// are started again, and take the arrays over under the same ids; nobody, save a session that is gone, loses an array
// that was ready and could be copied within limits::kEvictionCopies. What was cancelled ends with CANCELLED. Launches
// of others that are queued behind it, and so don't end within limits::kEvictionDrain, are sent to the new engine again
// (engines.h); what can't be, a launch over several hosts or one that was given its inputs, fails with ABORTED.
//
// Owned by the core; used inside tasks of its executor only.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>

#include "runtime/session_impl.h"

namespace parkway::runtime {

class Eviction {
 public:
  explicit Eviction(CoreState* core) : core_(core) {}
  ~Eviction() { *alive_ = false; }

  void OnSessionClosed(uint64_t session);
  // What the session, which lives on, has in flight is to end; `by` says who wants it.
  void Cancel(uint64_t session, const std::string& by);
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
    std::string reason;                       // of the restart
    uint64_t session_gone = 0;                // whose arrays nobody wants; 0: everybody lives
    std::set<std::pair<uint64_t, int>> kept;  // array and device
  };

  // After the grace: restarts the engines on which something cancelled of that session is in flight.
  void EndLater(uint64_t session, uint64_t session_gone, std::string reason);
  void Start(int host, uint64_t session_gone, std::string reason);
  // What isn't cancelled and in flight there gets until then to end.
  void Drain(int host, uint64_t incarnation, absl::Time until);
  void CopyOut(int host);
  void Restart(int host);

  CoreState* core_;
  std::map<int, Host> hosts_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace parkway::runtime
