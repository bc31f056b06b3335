#include "proxy/init_response.h"

#include <iterator>
#include <string>

#include "absl/strings/str_cat.h"
#include "ifrt/attributes_wire.h"

namespace parkway::proxy {

namespace wire = xla::ifrt::proxy;

namespace {

constexpr int kNumMemoryKinds = std::size(kMemoryKinds);

// Unique over all devices and kinds.
int MemoryId(int device, int kind) { return device * kNumMemoryKinds + kind; }

void FillDevice(const runtime::Topology& topology, const runtime::Device& device, wire::InitResponse::Device* out) {
  const runtime::SliceSpec& slice = topology.slices()[device.slice];
  out->set_id(device.id);
  out->set_local_device_id(device.id);
  out->set_local_hardware_id(device.id);
  out->set_platform_name(slice.platform);
  out->set_device_kind(slice.platform);
  out->set_debug_string(absl::StrCat(slice.platform, ":", device.id));
  out->set_to_string(absl::StrCat("CpuDevice(id=", device.id, ")"));
  out->set_default_memory_id(MemoryId(device.id, 0));
  for (int kind = 0; kind < kNumMemoryKinds; ++kind) out->add_memory_ids(MemoryId(device.id, kind));
  const int64_t in_slice = int64_t{device.host_in_slice} * slice.devices_per_host + device.ordinal;
  *out->mutable_attributes() = ifrt::EncodeAttributes({
      {"slice_index", int64_t{device.slice}},
      {"task_id", int64_t{device.host}},
      {"coords", std::vector<int64_t>{in_slice, 0, 0}},
      {"core_on_chip", int64_t{0}},
      {"num_cores", int64_t{1}},
      {"colocation_id", int64_t{device.id}},
  });
}

void AddMemories(const runtime::Device& device, wire::InitResponse* response) {
  for (int kind = 0; kind < kNumMemoryKinds; ++kind) {
    wire::InitResponse::Memory* memory = response->add_memories();
    memory->set_id(MemoryId(device.id, kind));
    memory->set_memory_space_kind(kMemoryKinds[kind]);
    memory->set_kind_id(kind);
    memory->add_device_ids(device.id);
    memory->set_debug_string(absl::StrCat(kMemoryKinds[kind], " of cpu:", device.id));
    memory->set_to_string(absl::StrCat("CpuMemory(id=", MemoryId(device.id, kind), ", kind=", kMemoryKinds[kind], ")"));
  }
}

}  // namespace

bool IsMemoryKind(const std::string& kind) {
  for (const char* known : kMemoryKinds) {
    if (kind == known) return true;
  }
  return false;
}

void FillInitResponse(const runtime::Topology& topology, uint64_t session_id, wire::InitResponse* response) {
  response->set_session_id(session_id);
  response->set_platform_name(topology.slices().empty() ? "cpu" : topology.slices()[0].platform);
  response->set_platform_version(absl::StrCat("parkway ", PARKWAY_VERSION));
  response->set_platform_id(1);
  response->set_process_index(0);
  response->set_runtime_type("pathways");
  for (const runtime::Device& device : topology.devices()) {
    FillDevice(topology, device, response->add_all_devices());
    response->add_primary_device_ids(device.id);
    response->add_addressable_device_ids(device.id);
    AddMemories(device, response);
  }
  *response->mutable_client_attributes() = ifrt::EncodeAttributes({
      {"serialize_with_sdy", true},
      {"supports_executable_serialization", false},
  });
}

}  // namespace parkway::proxy
