#include "fabric/offer_table.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/limits.h"

namespace parkway::fabric {
namespace {

absl::Status Dropped(uint64_t id) {
  return absl::AbortedError(absl::StrCat("transfer ", absl::Hex(id), " was dropped by its owner"));
}

}  // namespace

template <typename F>
std::vector<std::pair<uint64_t, OfferTable::Waiting>> OfferTable::Take(F which) {
  std::vector<std::pair<uint64_t, Waiting>> taken;
  for (auto it = waiting_.begin(); it != waiting_.end();) {
    const uint64_t id = it->first;
    std::erase_if(it->second, [&](Waiting& waiting) {
      if (!which(id, waiting)) return false;
      taken.emplace_back(id, std::move(waiting));
      return true;
    });
    if (it->second.empty()) {
      waiting_.erase(it++);
    } else {
      ++it;
    }
  }
  return taken;
}

void OfferTable::Put(uint64_t id, absl::StatusOr<Bytes> bytes) {
  std::vector<Waiting> answered;
  absl::StatusOr<Bytes> previous(Bytes{});
  {
    std::lock_guard lock(mutex_);
    if (dropped_.contains(id)) return;
    auto [it, inserted] = offers_.try_emplace(id, bytes);
    if (!inserted) previous = std::exchange(it->second, bytes);
    if (auto waiting = waiting_.find(id); waiting != waiting_.end()) {
      answered = std::move(waiting->second);
      waiting_.erase(waiting);
    }
  }
  for (Waiting& waiting : answered) waiting.waiter(bytes);
}

void OfferTable::Drop(uint64_t id) {
  std::vector<Waiting> answered;
  absl::StatusOr<Bytes> freed(Bytes{});
  {
    std::lock_guard lock(mutex_);
    if (auto it = offers_.find(id); it != offers_.end()) {
      freed = std::move(it->second);
      offers_.erase(it);
    }
    if (auto waiting = waiting_.find(id); waiting != waiting_.end()) {
      answered = std::move(waiting->second);
      waiting_.erase(waiting);
    }
    if (dropped_.insert(id).second) dropped_order_.push_back(id);
    if (dropped_order_.size() > static_cast<size_t>(limits::kRememberedDrops)) {
      dropped_.erase(dropped_order_.front());
      dropped_order_.pop_front();
    }
  }
  for (Waiting& waiting : answered) waiting.waiter(Dropped(id));
}

void OfferTable::Await(uint64_t id, const void* owner, absl::Time deadline, Waiter waiter) {
  absl::StatusOr<Bytes> answer(Bytes{});
  {
    std::lock_guard lock(mutex_);
    if (auto it = offers_.find(id); it != offers_.end()) {
      answer = it->second;
    } else if (dropped_.contains(id)) {
      answer = Dropped(id);
    } else {
      waiting_[id].push_back({owner, deadline, std::move(waiter)});
      return;
    }
  }
  waiter(std::move(answer));
}

void OfferTable::Forget(const void* owner) {
  std::vector<std::pair<uint64_t, Waiting>> forgotten;  // freed after the lock
  std::lock_guard lock(mutex_);
  forgotten = Take([owner](uint64_t, const Waiting& waiting) { return waiting.owner == owner; });
}

void OfferTable::Expire(absl::Time now) {
  std::vector<std::pair<uint64_t, Waiting>> expired;
  {
    std::lock_guard lock(mutex_);
    expired = Take([now](uint64_t, const Waiting& waiting) { return waiting.deadline <= now; });
  }
  for (auto& [id, waiting] : expired) {
    waiting.waiter(absl::AbortedError(absl::StrCat("the bytes of transfer ", absl::Hex(id), " never came to be")));
  }
}

void OfferTable::FailAll(const absl::Status& why) {
  std::vector<std::pair<uint64_t, Waiting>> all;
  {
    std::lock_guard lock(mutex_);
    all = Take([](uint64_t, const Waiting&) { return true; });
  }
  for (auto& [id, waiting] : all) waiting.waiter(why);
}

}  // namespace parkway::fabric
