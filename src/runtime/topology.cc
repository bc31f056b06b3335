#include "runtime/topology.h"

#include <utility>

#include "absl/strings/str_cat.h"

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

}  // namespace parkway::runtime
