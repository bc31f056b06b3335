#include "ifrt/device_list.h"

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/limits.h"
#include "ifrt/intern.h"

namespace parkway::ifrt {
namespace {

InternTable<DeviceList>& Table() {
  static auto* table = new InternTable<DeviceList>();
  return *table;
}

bool IsAscendingRun(absl::Span<const int32_t> ids) {
  for (size_t i = 1; i < ids.size(); ++i) {
    if (int64_t{ids[i]} != int64_t{ids[0]} + static_cast<int64_t>(i)) return false;
  }
  return true;
}

absl::Status Check(absl::Span<const int32_t> ids) {
  if (ids.size() > static_cast<size_t>(limits::kMaxDevicesPerSharding)) {
    return absl::InvalidArgumentError(
        absl::StrCat("a list of ", ids.size(), " devices: the most is ", limits::kMaxDevicesPerSharding));
  }
  if (!ids.empty() && ids[0] >= 0 && IsAscendingRun(ids)) return absl::OkStatus();
  absl::flat_hash_set<int32_t> seen;
  seen.reserve(ids.size());
  for (int32_t id : ids) {
    if (id < 0) return absl::InvalidArgumentError(absl::StrCat("a list of devices has the negative id ", id));
    if (!seen.insert(id).second) {
      return absl::InvalidArgumentError(absl::StrCat("a list of devices has device ", id, " twice"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

DeviceList::DeviceList(absl::Span<const int32_t> ids)
    : ids_(ids.begin(), ids.end()), ascending_run_(!ids.empty() && IsAscendingRun(ids)) {
  if (ascending_run_) return;
  positions_.reserve(ids_.size());
  for (size_t i = 0; i < ids_.size(); ++i) positions_.emplace(ids_[i], static_cast<int>(i));
}

absl::StatusOr<DeviceListPtr> DeviceList::Make(absl::Span<const int32_t> ids) {
  if (absl::Status status = Check(ids); !status.ok()) return status;
  std::string key(reinterpret_cast<const char*>(ids.data()), ids.size() * sizeof(int32_t));
  return Table().Get(std::move(key), [&] { return DeviceListPtr(new DeviceList(ids)); });
}

std::optional<int> DeviceList::Position(int32_t id) const {
  if (ascending_run_) {
    const int64_t position = int64_t{id} - ids_[0];
    if (position < 0 || position >= size()) return std::nullopt;
    return static_cast<int>(position);
  }
  auto it = positions_.find(id);
  if (it == positions_.end()) return std::nullopt;
  return it->second;
}

bool DeviceList::SameSet(const DeviceList& other) const {
  if (this == &other) return true;
  if (size() != other.size()) return false;
  for (int32_t id : ids_) {
    if (!other.Contains(id)) return false;
  }
  return true;
}

std::string DeviceList::ToString() const {
  constexpr size_t kShown = 16;
  return absl::StrCat("[", absl::StrJoin(ids().subspan(0, kShown), ","), ids_.size() > kShown ? ",..." : "", "]");
}

}  // namespace parkway::ifrt
