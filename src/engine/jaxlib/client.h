// An XLA client, local or of a context, and its device lists. Everything here needs the GIL, which is also what guards
// it.
//
// Include this in .cc files only: it brings Python.h.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "engine/jaxlib/api.h"
#include "engine/jaxlib/references.h"

namespace parkway::engine {

// The devices of an array or executable in their order, with jaxlib's objects for arrays over them. One object for each
// list of a client, so that pointers tell lists apart. `locals` has the local devices among them.
struct DeviceSet {
  ~DeviceSet() { CollectClientsLater(); }

  uint64_t client = 0;             // number of the client, never used again
  std::vector<int> locals;         // local device numbers, in order
  bool single = false;             // one device, a local one
  HeldRef list;                    // DeviceList of all
  HeldRef local_devices;           // list of the local ones' Device objects
  std::vector<HeldRef> shardings;  // by memory kind
};
using DeviceSetRef = std::shared_ptr<const DeviceSet>;

class Client {
 public:
  ~Client() { CollectClientsLater(); }
  // Device k of this process has the id `first_id` + k.
  static absl::StatusOr<std::shared_ptr<Client>> Wrap(const Api& api, PyRef client, int first_id, int num_local);

  PyObject* object() const { return object_.get(); }
  const std::vector<std::string>& memory_kinds() const { return memory_kinds_; }
  // Where a kind stands among them; the default for an empty name. INVALID_ARGUMENT for one that isn't there.
  absl::StatusOr<int> MemoryKind(const std::string& kind) const;
  absl::StatusOr<DeviceSetRef> Devices(const std::vector<int>& ids);
  // Of local devices, given by their numbers.
  absl::StatusOr<DeviceSetRef> LocalDevices(absl::Span<const int> locals);

 private:
  explicit Client(const Api& api) : api_(api) {}
  absl::StatusOr<DeviceSetRef> MakeDeviceSet(const std::vector<int>& ids);

  const Api& api_;
  HeldRef object_;
  HeldRef devices_;  // dict: id -> Device
  uint64_t number_ = 0;
  int first_id_ = 0;
  int num_local_ = 0;
  std::vector<std::string> memory_kinds_;
  absl::flat_hash_map<std::vector<int>, DeviceSetRef> sets_;
};

}  // namespace parkway::engine
