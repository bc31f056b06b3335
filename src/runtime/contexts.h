// Hosts that run collectives together form a context: a set of (host, incarnation) with its own client and connections
// in each engine. One opens when a program first spans its hosts, and closes when a member dies, when a collective in
// it fails, or when it has been idle longest and there are too many. A closed context is never used again: the next
// launch opens another one.
//
// Owned by the core; used inside tasks of its executor only.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "runtime/engines.h"

namespace parkway::runtime {

class Contexts {
 public:
  enum class State { kOpening, kOpen, kClosed };
  struct Context {
    uint64_t id = 0;
    HostList hosts;
    std::vector<uint64_t> incarnations;
    State state = State::kOpening;
    HostList unopened;
    uint64_t last_used = 0;
    int launches = 0;  // in flight
  };

  // `changed`: a context opened or closed, so that queued work may go on or fail.
  Contexts(Engines* engines, const Topology* topology, std::function<void()> changed)
      : engines_(engines), topology_(topology), changed_(std::move(changed)) {}

  // The context of these hosts (two or more, all up), opening or open. INVALID_ARGUMENT when it would have too many
  // ranks.
  absl::StatusOr<const Context*> Get(const HostList& hosts);
  // Why the last one that did not open, or closed before its time, did so.
  const absl::Status& last_failure() const { return last_failure_; }
  void LaunchStarted(uint64_t id);
  void LaunchEnded(uint64_t id, const absl::Status& error);

  void OnHostLost(int host, const absl::Status& cause);
  void OnState(int host, const ContextState& state);
  void OnKeyValue(int host, const KeyValue& key);

 private:
  Context* Open(const HostList& hosts);
  void Close(Context& context, const absl::Status& cause);
  void CloseIdle();

  Engines* engines_;
  const Topology* topology_;
  std::function<void()> changed_;
  absl::btree_map<uint64_t, std::unique_ptr<Context>> contexts_;
  absl::flat_hash_map<std::string, uint64_t> by_members_;
  uint64_t next_id_ = 1;
  uint64_t uses_ = 0;
  absl::Status last_failure_;
};

}  // namespace parkway::runtime
