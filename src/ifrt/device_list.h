// A list of device ids, in the order of the shards that lie on them. Lists are immutable and interned: equal lists are
// the same object, so that pointers compare. Any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace parkway::ifrt {

class DeviceList;
using DeviceListPtr = std::shared_ptr<const DeviceList>;

class DeviceList {
 public:
  // INVALID_ARGUMENT for an id that is negative or stands twice, or more than limits::kMaxDevicesPerSharding of them.
  static absl::StatusOr<DeviceListPtr> Make(absl::Span<const int32_t> ids);

  absl::Span<const int32_t> ids() const { return ids_; }
  int32_t id(int position) const { return ids_[position]; }
  int size() const { return static_cast<int>(ids_.size()); }

  // Where that device stands in the list.
  std::optional<int> Position(int32_t id) const;
  bool Contains(int32_t id) const { return Position(id).has_value(); }

  // The same devices, in whatever order.
  bool SameSet(const DeviceList& other) const;

  std::string ToString() const;  // "[0,1,2]", at most the first 16

  DeviceList(const DeviceList&) = delete;
  DeviceList& operator=(const DeviceList&) = delete;

 private:
  explicit DeviceList(absl::Span<const int32_t> ids);

  std::vector<int32_t> ids_;
  bool ascending_run_ = false;  // ids_[i] == ids_[0] + i: positions_ stays empty
  absl::flat_hash_map<int32_t, int> positions_;
};

}  // namespace parkway::ifrt
