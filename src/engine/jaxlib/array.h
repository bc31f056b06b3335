// Arrays of the jaxlib engine: one jaxlib array over all local shards where a launch or MakeArray made it,
// single-device ones where they are asked for, and both again for other device lists and clients. None of these copies
// bytes. Methods marked GIL need it, and it guards what they touch; the rest any thread may call.
//
// Include this in .cc files only: it brings Python.h.
#pragma once

#include <atomic>
#include <memory>
#include <utility>
#include <vector>

#include "engine/jaxlib/client.h"
#include "engine/jaxlib/completion.h"

namespace parkway::engine {

struct ArrayLayout {
  std::vector<int> devices;  // local devices with a shard, in order
  std::vector<Type> types;   // of each
  int memory_kind = 0;       // index in the capabilities
};
using ArrayLayoutRef = std::shared_ptr<const ArrayLayout>;

// One single-device array of jaxlib's. Arrays that were assembled of each other share it.
struct Shard {
  HeldRef array;
  DeviceSetRef set;  // which keeps the client
};
using ShardRef = std::shared_ptr<const Shard>;

class JaxArray : public Array {
 public:
  // `whole` is a jaxlib array over `set`, whose local devices are the layout's. A null completion is done and OK.
  JaxArray(const Api& api, ArrayLayoutRef layout, DeviceSetRef set, HeldRef whole, CompletionRef completion);
  // Of shards in the layout's order; completions likewise.
  JaxArray(const Api& api, ArrayLayoutRef layout, std::vector<ShardRef> shards, std::vector<CompletionRef> completions);

  absl::Span<const int> devices() const override { return layout_->devices; }
  const Type& type(int device) const override { return layout_->types[Position(device)]; }
  const ArrayLayoutRef& layout() const { return layout_; }
  bool Has(int device) const { return Position(device) >= 0; }

  const CompletionRef& completion(int device) const {
    return completions_[completions_.size() == 1 ? 0 : Position(device)];
  }
  const std::vector<CompletionRef>& completions() const { return completions_; }
  // OK while the work is pending; FAILED_PRECONDITION once it was donated.
  absl::Status status() const;
  // The client whose memory all shards lie in, or 0 when they are of several.
  uint64_t home() const { return home_; }
  // Views that are promised and not made yet: a donation waits for them.
  std::atomic<int>& promised_views() { return promised_views_; }

  // GIL: the array over `set`, borrowed. Where the client is another one, all shards must be ready.
  absl::StatusOr<PyObject*> On(const DeviceSetRef& set);
  // GIL: of a device that has one.
  absl::StatusOr<ShardRef> ShardOn(int device);
  // GIL: whether another array shares a shard, so that a donation would take it from that one too.
  bool SharesShards() const;
  // GIL: gives up all references; later uses fail.
  void Donate();
  // Dense row-major bytes of a shard that is ready. Takes the GIL.
  absl::StatusOr<Bytes> ViewReady(int device);

 private:
  int Position(int device) const;
  absl::StatusOr<PyRef> Wrap(const DeviceSet& set);
  absl::StatusOr<PyRef> Adopt(const DeviceSet& set, const std::vector<ShardRef>& shards);

  const Api& api_;
  const ArrayLayoutRef layout_;
  const uint64_t home_;
  const std::vector<CompletionRef> completions_;  // one for all shards, or one for each
  std::atomic<int> promised_views_{0};
  std::atomic<bool> donated_{false};
  DeviceSetRef set_;                                       // of whole_
  HeldRef whole_;                                          // may be null
  std::vector<ShardRef> shards_;                           // empty until one is asked for
  std::vector<std::pair<DeviceSetRef, HeldRef>> wrapped_;  // over other device lists
};

// GIL: an array of jaxlib's over `set`, of its local devices' single-device ones.
absl::StatusOr<PyRef> OverDevices(const Api& api, const Type& type, const DeviceSet& set, int memory_kind,
                                  PyObject* arrays);
// GIL: an array of jaxlib's on the local devices of `set`, of one numpy array for each. Aliases them where XLA can.
absl::StatusOr<PyRef> PutNumpy(const Api& api, const Type& type, const DeviceSet& set, int memory_kind,
                               PyObject* numpy_list);

}  // namespace parkway::engine
