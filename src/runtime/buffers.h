// What engines hold, seen from the core. `Buffers` is what one operation made: a shard on each device of a list, under
// one id that engines know it by. Client arrays refer to it as a Whole, or shard by shard after a split, and several
// may share it; when the last reference to a shard goes, its bytes are freed, so splitting, assembling and remapping
// are bookkeeping.
//
// State by shard: pending until the operation that makes it has ended, then its bytes or a first cause. Errors arrive
// shard by shard and stay values. Owned by shared pointers; used inside tasks of the core's executor only.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "base/bytes.h"
#include "ifrt/device_list.h"
#include "runtime/session.h"

namespace parkway::runtime {

class Buffers;
using BuffersRef = std::shared_ptr<Buffers>;

// Told what becomes of buffers; the core's.
class BuffersOwner {
 public:
  virtual ~BuffersOwner() = default;
  // No client array refers to these shards any more. All of them: `devices` is empty.
  virtual void OnFreed(Buffers& buffers, absl::Span<const int> devices) = 0;
  virtual void OnDestroyed(Buffers& buffers) = 0;
};

// A session as the one who pays for buffers: how many bytes engines hold for it, and in which.
struct Holder {
  explicit Holder(uint64_t id) : session(id) {}
  const uint64_t session;
  int64_t bytes = 0;
  Buffers* first = nullptr;  // a list through all of its buffers
};
using HolderRef = std::shared_ptr<Holder>;

// What made an array, for messages: "program 'jit_step'", "device_put".
using MadeBy = std::shared_ptr<const std::string>;

class Buffers : public std::enable_shared_from_this<Buffers> {
 public:
  // `spec`: as it was made; `shard_bytes`: size of one shard, for accounting; `holder`: who pays.
  Buffers(BuffersOwner* owner, uint64_t id, HolderRef holder, ArraySpec spec, int64_t shard_bytes, MadeBy made_by);
  ~Buffers();
  Buffers(const Buffers&) = delete;
  Buffers& operator=(const Buffers&) = delete;

  uint64_t id() const { return id_; }
  uint64_t session() const { return holder_->session; }
  Holder& holder() const { return *holder_; }
  // The next one of the same holder.
  Buffers* next() const { return next_; }
  const MadeBy& made_by() const { return made_by_; }
  const ArraySpec& spec() const { return spec_; }
  const ifrt::DeviceListPtr& devices() const { return spec_.sharding->devices(); }
  int64_t shard_bytes() const { return shard_bytes_; }
  int64_t total_bytes() const { return shard_bytes_ * devices()->size(); }

  // Device memory is charged from when engines are told to make shards until they are told to free them, or lose them.
  bool charged = false;
  absl::flat_hash_set<int> discharged;  // before the others
  bool Charged(int device) const { return charged && (discharged.empty() || !discharged.contains(device)); }

  // True once engines were told of the id: then they must be told when it goes.
  bool on_engines = false;
  // The launch that it was donated to takes the bytes; nobody else frees them.
  bool donated = false;
  // Strings stay in the proxy: their bytes, by position in devices(). Empty for everything else.
  std::vector<Bytes> host_bytes;

  bool settled() const { return settled_; }
  // The first error of any shard.
  const absl::Status& error() const { return error_; }
  absl::Status ShardError(int device) const;
  bool has_errors() const { return !error_.ok(); }

  void Fail(int device, const absl::Status& why);  // keeps a first cause
  void FailAll(const absl::Status& why);
  // No shard is pending any more.
  void Settle();
  // Runs `then` once settled, perhaps now.
  void WhenSettled(absl::AnyInvocable<void()> then);
  // What still waits, which then never runs: it may hold references to these very buffers.
  std::vector<absl::AnyInvocable<void()>> TakeWaiters() { return std::exchange(waiters_, {}); }

  // Frees what no client array refers to.
  void FreeUnreferenced();
  void FreeShard(int device);

  // Who refers to it: Whole and Shard count themselves here.
  int wholes = 0;
  int shard_refs = 0;
  absl::flat_hash_map<int, int> refs_by_device;

 private:
  BuffersOwner* owner_;
  const uint64_t id_;
  const HolderRef holder_;
  const ArraySpec spec_;
  const int64_t shard_bytes_;
  const MadeBy made_by_;
  Buffers* next_ = nullptr;
  Buffers* previous_ = nullptr;
  bool settled_ = false;
  absl::Status error_;
  absl::Status all_error_;
  absl::flat_hash_map<int, absl::Status> shard_errors_;
  std::vector<absl::AnyInvocable<void()>> waiters_;
};

// A reference to all shards of a Buffers.
class Whole {
 public:
  explicit Whole(BuffersRef buffers) : buffers_(std::move(buffers)) { ++buffers_->wholes; }
  ~Whole();
  Whole(const Whole&) = delete;
  Whole& operator=(const Whole&) = delete;
  const BuffersRef& buffers() const { return buffers_; }

 private:
  BuffersRef buffers_;
};

// A reference to one shard.
class Shard {
 public:
  Shard(BuffersRef buffers, int device);
  ~Shard();
  Shard(const Shard&) = delete;
  Shard& operator=(const Shard&) = delete;
  const BuffersRef& buffers() const { return buffers_; }
  int device() const { return device_; }

 private:
  BuffersRef buffers_;
  int device_;
};

// One array as a client knows it. Neither whole nor shards: deleted.
struct ArrayRecord {
  ArraySpec spec;
  std::shared_ptr<Whole> whole;
  std::vector<std::shared_ptr<Shard>> shards;  // in the order of spec.sharding's devices

  bool deleted() const { return whole == nullptr && shards.empty(); }
  int num_shards() const { return spec.sharding->num_shards(); }
  const Buffers& buffers_of(int shard) const { return whole ? *whole->buffers() : *shards[shard]->buffers(); }
  const BuffersRef& buffers_ref(int shard) const { return whole ? whole->buffers() : shards[shard]->buffers(); }
  int device_of(int shard) const { return spec.sharding->devices()->id(shard); }
  // A reference to one shard that an array of its own can hold.
  std::shared_ptr<Shard> ShardAt(int shard) const;
  // First error of any shard, OK when there is none yet.
  absl::Status Error() const;
  // The distinct Buffers behind it.
  void ForEachBuffers(const std::function<void(const BuffersRef&)>& visit) const;
  // Is anybody else's array looking at the same bytes?
  bool SharesBytes() const;
  void Drop() {
    whole.reset();
    shards.clear();
  }
};

}  // namespace parkway::runtime
