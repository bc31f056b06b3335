#include "runtime/topology.h"

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/limits.h"

namespace parkway::runtime {

Topology::Topology(std::vector<SliceSpec> slices) : slices_(std::move(slices)) {
  for (int s = 0; s < static_cast<int>(slices_.size()); ++s) {
    for (int h = 0; h < slices_[s].hosts; ++h) {
      Host host{.slice = s, .host_in_slice = h, .devices = {}};
      for (int d = 0; d < slices_[s].devices_per_host; ++d) {
        int id = static_cast<int>(devices_.size());
        host.devices.push_back(id);
        devices_.push_back(
            Device{.id = id, .slice = s, .host = static_cast<int>(hosts_.size()), .host_in_slice = h, .ordinal = d});
      }
      hosts_.push_back(std::move(host));
    }
  }
}

std::string Topology::Describe(int device) const {
  if (!IsDevice(device)) return absl::StrCat("device ", device, " (there is none of that id)");
  const Device& d = devices_[device];
  return absl::StrCat("device ", device, " (slice ", d.slice, ", host ", d.host_in_slice, ")");
}

std::string Topology::DescribeHost(int host) const {
  return absl::StrCat("slice ", hosts_[host].slice, ", host ", hosts_[host].host_in_slice);
}

absl::StatusOr<SliceSpec> ParseSliceSpec(absl::string_view text) {
  auto wrong = [&] {
    return absl::InvalidArgumentError(
        absl::StrCat("slice type \"", text,
                     "\" is not of the form cpu:HxD (hosts in the slice, devices on each), "
                     "for example cpu:1x2"));
  };
  std::vector<absl::string_view> parts = absl::StrSplit(text, absl::MaxSplits(':', 1));
  if (parts.size() != 2 || parts[0].empty()) return wrong();
  std::vector<absl::string_view> sizes = absl::StrSplit(parts[1], 'x');
  SliceSpec spec{.platform = std::string(parts[0])};
  if (sizes.size() != 2 || !absl::SimpleAtoi(sizes[0], &spec.hosts) ||
      !absl::SimpleAtoi(sizes[1], &spec.devices_per_host) || spec.hosts < 1 || spec.devices_per_host < 1) {
    return wrong();
  }
  if (spec.hosts > limits::kMaxHostsPerSlice || spec.devices_per_host > limits::kMaxDevicesPerHost) {
    return absl::InvalidArgumentError(absl::StrCat("slice type \"", text, "\" is larger than ",
                                                   limits::kMaxHostsPerSlice, " hosts of ", limits::kMaxDevicesPerHost,
                                                   " devices"));
  }
  return spec;
}

}  // namespace parkway::runtime
