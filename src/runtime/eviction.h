// A program that never ends must not hold a host for ever. When its session is gone and it still runs after
// limits::kEndlessProgramGrace, the arrays of other sessions on its hosts are copied out, the engines are started
// again, and the copies are put back under the same ids; nobody but the dead session loses an array that was ready and
// could be copied within limits::kEvictionCopies. Launches of others that are queued behind it, and so don't end within
// limits::kEvictionDrain, are sent to the new engine again (engines.h); what can't be, a launch over several hosts or
// one that was given its inputs, fails with ABORTED.
//
// Owned by the core; used inside tasks of its executor only.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "base/bytes.h"
#include "runtime/session_impl.h"

namespace parkway::runtime {

class Eviction {
 public:
  explicit Eviction(CoreState* core) : core_(core) {}
  ~Eviction() { *alive_ = false; }

  void OnSessionClosed(uint64_t session);
  void OnEngineUp(int host);
  // It will not come back: what was to be put back is dropped.
  void OnHostGone(int host) { hosts_.erase(host); }
  // Was that shard copied out, to be put back?
  bool Spares(const Buffers& buffers, int device) const;

 private:
  // Array and device of a shard on its way out and back.
  using Key = std::pair<uint64_t, int>;
  struct Saved {
    std::weak_ptr<Buffers> buffers;
    Bytes bytes;
  };
  struct Host {
    uint64_t incarnation = 0;
    int copies_left = 0;
    bool restarting = false;
    std::map<Key, Saved> saved;
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
