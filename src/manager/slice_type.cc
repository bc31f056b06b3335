#include "manager/slice_type.h"

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/limits.h"
#include "base/status.h"
#include "proto/parkway/manager.pb.h"

namespace parkway::manager {
namespace {

absl::Status Malformed(absl::string_view name, absl::string_view why) {
  return absl::InvalidArgumentError(absl::StrCat("slice type '", name, "': ", why,
                                                 "; it takes PLATFORM:HOSTSxDEVICES, for example cpu:2x4 (2 hosts of 4 "
                                                 "devices), or a TPU's name and topology, for example tpuv5e:2x4"));
}

// Chips of one host of a TPU slice: slices of up to 8 chips of the small generations fit one host, others have 4 a
// host.
int ChipsPerHost(absl::string_view platform, int chips) {
  bool small = absl::StrContains(platform, "v5e") || absl::StrContains(platform, "v6e") ||
               absl::StrContains(platform, "v5lite") || absl::StrContains(platform, "v6lite");
  return small && chips <= 8 ? chips : std::min(chips, 4);
}

}  // namespace

absl::StatusOr<SliceType> ParseSliceType(const std::string& name) {
  absl::string_view text = absl::StripSuffix(name, "_untwisted");
  std::vector<absl::string_view> halves = absl::StrSplit(text, ':');
  if (halves.size() != 2 || halves[0].empty()) return Malformed(name, "no platform and ':'");
  if (halves[0].size() > limits::kMaxNameBytes) return Malformed(absl::string_view(name).substr(0, 64), "too long");
  std::vector<int> extents;
  int64_t total = 1;
  for (absl::string_view part : absl::StrSplit(halves[1], 'x')) {
    int extent = 0;
    if (!absl::SimpleAtoi(part, &extent) || extent < 1) return Malformed(name, "an extent is not a positive number");
    extents.push_back(extent);
    total *= extent;
    if (total > int64_t{limits::kMaxHostsPerSlice} * limits::kMaxDevicesPerHost) return Malformed(name, "too large");
  }
  bool tpu = absl::StartsWith(halves[0], "tpu");
  if (extents.size() != 2 && !(tpu && extents.size() == 3)) return Malformed(name, "wrong number of extents");
  SliceType type;
  type.set_platform(std::string(halves[0]));
  if (tpu) {
    int per_host = ChipsPerHost(halves[0], static_cast<int>(total));
    if (total % per_host != 0) return Malformed(name, absl::StrCat(total, " chips don't fill hosts of ", per_host));
    type.set_devices_per_host(per_host);
    type.set_hosts(static_cast<int>(total / per_host));
  } else {
    type.set_hosts(extents[0]);
    type.set_devices_per_host(extents[1]);
  }
  if (type.hosts() > limits::kMaxHostsPerSlice || type.devices_per_host() > limits::kMaxDevicesPerHost) {
    return Malformed(name, absl::StrCat("at most ", limits::kMaxHostsPerSlice, " hosts of ", limits::kMaxDevicesPerHost,
                                        " devices are possible"));
  }
  return type;
}

absl::StatusOr<std::vector<SliceType>> ParseSliceTypes(const std::string& names) {
  std::vector<SliceType> types;
  for (const absl::string_view name : absl::StrSplit(names, ',')) {
    PARKWAY_ASSIGN_OR_RETURN(SliceType type, ParseSliceType(std::string(name)));
    types.push_back(std::move(type));
    if (types.size() > limits::kMaxSlicesPerLease) {
      return absl::InvalidArgumentError(absl::StrCat("more than ", limits::kMaxSlicesPerLease, " slices asked for"));
    }
  }
  return types;
}

std::string SliceTypeName(const SliceType& type) {
  return absl::StrCat(type.platform(), ":", type.hosts(), "x", type.devices_per_host());
}

bool SameSliceType(const SliceType& a, const SliceType& b) {
  return a.platform() == b.platform() && a.hosts() == b.hosts() && a.devices_per_host() == b.devices_per_host();
}

}  // namespace parkway::manager
