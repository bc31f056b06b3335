// A table that gives equal immutable values one shared object, so that comparing them is comparing pointers. It keeps
// nothing alive: an object goes with its last user, and dead entries are swept as the table grows. Any thread.
#pragma once

#include <algorithm>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "absl/container/flat_hash_map.h"

namespace parkway::ifrt {

template <typename T>
class InternTable {
 public:
  // The live object of that key, or else `make()`, which must depend on the key alone.
  template <typename Make>
  std::shared_ptr<const T> Get(std::string key, Make make) {
    std::lock_guard lock(mutex_);
    auto [it, inserted] = entries_.try_emplace(std::move(key));
    if (!inserted) {
      if (auto live = it->second.lock()) return live;
    }
    std::shared_ptr<const T> made = make();
    it->second = made;
    if (inserted && entries_.size() >= sweep_at_) Sweep();
    return made;
  }

  size_t size() const {
    std::lock_guard lock(mutex_);
    return entries_.size();
  }

 private:
  // Under mutex_.
  void Sweep() {
    absl::erase_if(entries_, [](const auto& entry) { return entry.second.expired(); });
    sweep_at_ = std::max<size_t>(kFirstSweep, 2 * entries_.size());
  }

  static constexpr size_t kFirstSweep = 1024;
  // No absl::Mutex: a system's Abseil is not built for ThreadSanitizer, which then can't see its locks.
  mutable std::mutex mutex_;
  absl::flat_hash_map<std::string, std::weak_ptr<const T>> entries_;
  size_t sweep_at_ = kFirstSweep;
};

}  // namespace parkway::ifrt
