// The devices that a client sees: the virtual slices of the proxy's flags, numbered once and for ever. Which physical
// host stands behind a device, if any, is the core's business (engines.h); ids and attributes never change in a
// session. Immutable; any thread.
#pragma once

#include <string>
#include <vector>

namespace parkway::runtime {

struct SliceSpec {
  std::string platform;  // "cpu"
  int hosts = 1;
  int devices_per_host = 1;
};

struct Device {
  int id = 0;
  int slice = 0;
  int host = 0;           // index in Topology::hosts
  int host_in_slice = 0;  // the client's task_id is `host`
  int ordinal = 0;        // on its host
};

struct Host {
  int slice = 0;
  int host_in_slice = 0;
  std::vector<int> devices;  // ids, in local order
};

class Topology {
 public:
  // Ids are dense from 0: slice by slice, host by host.
  explicit Topology(std::vector<SliceSpec> slices);

  const std::vector<SliceSpec>& slices() const { return slices_; }
  const std::vector<Host>& hosts() const { return hosts_; }
  const std::vector<Device>& devices() const { return devices_; }
  bool IsDevice(int id) const { return id >= 0 && id < static_cast<int>(devices_.size()); }
  const Device& device(int id) const { return devices_[id]; }
  // "device 3 (slice 1, host 0)", for messages; any number may be given.
  std::string Describe(int device) const;
  std::string DescribeHost(int host) const;  // "slice 1, host 0"

 private:
  std::vector<SliceSpec> slices_;
  std::vector<Host> hosts_;
  std::vector<Device> devices_;
};

}  // namespace parkway::runtime
