#include "runtime/buffers.h"

#include <utility>

#include "absl/container/flat_hash_set.h"

namespace parkway::runtime {

Buffers::Buffers(BuffersOwner* owner, uint64_t id, HolderRef holder, ArraySpec spec, int64_t shard_bytes,
                 MadeBy made_by)
    : owner_(owner),
      id_(id),
      holder_(std::move(holder)),
      spec_(std::move(spec)),
      shard_bytes_(shard_bytes),
      made_by_(std::move(made_by)),
      next_(holder_->first) {
  if (next_ != nullptr) next_->previous_ = this;
  holder_->first = this;
}

Buffers::~Buffers() {
  owner_->OnDestroyed(*this);
  if (next_ != nullptr) next_->previous_ = previous_;
  (previous_ != nullptr ? previous_->next_ : holder_->first) = next_;
}

absl::Status Buffers::ShardError(int device) const {
  if (error_.ok()) return absl::OkStatus();
  auto it = shard_errors_.find(device);
  if (it != shard_errors_.end()) return it->second;
  return all_error_;
}

void Buffers::Fail(int device, const absl::Status& why) {
  if (error_.ok()) error_ = why;
  if (all_error_.ok()) shard_errors_.try_emplace(device, why);
}

void Buffers::FailAll(const absl::Status& why) {
  if (error_.ok()) error_ = why;
  if (all_error_.ok()) all_error_ = why;
}

void Buffers::Settle() {
  if (settled_) return;
  settled_ = true;
  std::vector<absl::AnyInvocable<void()>> waiters = std::move(waiters_);
  waiters_.clear();
  for (auto& waiter : waiters) waiter();
}

void Buffers::WhenSettled(absl::AnyInvocable<void()> then) {
  if (settled_) {
    then();
  } else {
    waiters_.push_back(std::move(then));
  }
}

void Buffers::FreeUnreferenced() {
  if (wholes > 0) return;
  if (shard_refs == 0) return owner_->OnFreed(*this, {});
  for (int device : devices()->ids()) {
    if (!refs_by_device.contains(device)) FreeShard(device);
  }
}

void Buffers::FreeShard(int device) { owner_->OnFreed(*this, absl::MakeConstSpan(&device, 1)); }

Whole::~Whole() {
  if (--buffers_->wholes == 0) buffers_->FreeUnreferenced();
}

Shard::Shard(BuffersRef buffers, int device) : buffers_(std::move(buffers)), device_(device) {
  ++buffers_->shard_refs;
  ++buffers_->refs_by_device[device_];
}

Shard::~Shard() {
  Buffers& b = *buffers_;
  --b.shard_refs;
  auto it = b.refs_by_device.find(device_);
  if (--it->second > 0) return;
  b.refs_by_device.erase(it);
  if (b.wholes == 0) b.FreeShard(device_);
}

std::shared_ptr<Shard> ArrayRecord::ShardAt(int shard) const {
  if (whole) return std::make_shared<Shard>(whole->buffers(), device_of(shard));
  return shards[shard];
}

absl::Status ArrayRecord::Error() const {
  if (whole) return whole->buffers()->error();
  for (const auto& shard : shards) {
    if (!shard->buffers()->has_errors()) continue;
    absl::Status error = shard->buffers()->ShardError(shard->device());
    if (!error.ok()) return error;
  }
  return absl::OkStatus();
}

void ArrayRecord::ForEachBuffers(const std::function<void(const BuffersRef&)>& visit) const {
  if (whole) {
    visit(whole->buffers());
    return;
  }
  absl::flat_hash_set<const Buffers*> seen;
  for (const auto& shard : shards) {
    if (seen.insert(shard->buffers().get()).second) visit(shard->buffers());
  }
}

bool ArrayRecord::SharesBytes() const {
  if (whole) return whole.use_count() > 1 || whole->buffers()->wholes > 1 || whole->buffers()->shard_refs > 0;
  for (const auto& shard : shards) {
    if (shard.use_count() > 1 || shard->buffers()->wholes > 0 ||
        shard->buffers()->refs_by_device.at(shard->device()) > 1) {
      return true;
    }
  }
  return false;
}

}  // namespace parkway::runtime
