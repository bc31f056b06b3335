// What this process offers to pullers: bytes, errors, and pulls that came before either. Any thread; waiters are called
// without the lock, on the thread that brings their answer.
#pragma once

#include <cstdint>
#include <deque>
#include <mutex>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/bytes.h"

namespace parkway::fabric {

class OfferTable {
 public:
  using Waiter = absl::AnyInvocable<void(absl::StatusOr<Bytes>)>;

  // Bytes for an id that was dropped already are let go.
  void Put(uint64_t id, absl::StatusOr<Bytes> bytes);
  void Drop(uint64_t id);

  // Calls `waiter` once: now, when the id gets its bytes or its error, or with ABORTED when it is dropped or `deadline`
  // has passed. `owner` is for Forget.
  void Await(uint64_t id, const void* owner, absl::Time deadline, Waiter waiter);
  // Waiters of this owner are dropped without a call.
  void Forget(const void* owner);
  void Expire(absl::Time now);
  // Answers every waiter with `why`.
  void FailAll(const absl::Status& why);

 private:
  struct Waiting {
    const void* owner;
    absl::Time deadline;
    Waiter waiter;
  };
  // Takes the waiters for which `which` is true. The lock is held.
  template <typename F>
  std::vector<std::pair<uint64_t, Waiting>> Take(F which);

  std::mutex mutex_;
  absl::flat_hash_map<uint64_t, absl::StatusOr<Bytes>> offers_;
  absl::flat_hash_map<uint64_t, std::vector<Waiting>> waiting_;
  absl::flat_hash_set<uint64_t> dropped_;  // the last limits::kRememberedDrops
  std::deque<uint64_t> dropped_order_;
};

}  // namespace parkway::fabric
