#include "engine/jaxlib/client.h"

#include <algorithm>
#include <atomic>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status.h"

namespace parkway::engine {
namespace {

absl::StatusOr<std::vector<std::string>> MemoryKinds(const Api& api, PyObject* device) {
  PARKWAY_ASSIGN_OR_RETURN(PyRef kinds, CallPython(api.memory_kinds, {device}));
  std::vector<std::string> names;
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(kinds.get()); ++i) {
    PARKWAY_ASSIGN_OR_RETURN(std::string name, PythonString(PyList_GET_ITEM(kinds.get(), i)));
    names.push_back(std::move(name));
  }
  return names;
}

}  // namespace

absl::StatusOr<std::shared_ptr<Client>> Client::Wrap(const Api& api, PyRef object, int first_id, int num_local) {
  static std::atomic<uint64_t> last_number{0};
  std::shared_ptr<Client> client(new Client(api));
  client->number_ = ++last_number;
  client->first_id_ = first_id;
  client->num_local_ = num_local;
  PARKWAY_ASSIGN_OR_RETURN(PyRef devices, CallPython(api.devices_by_id, {object.get()}));
  client->object_ = HeldRef(std::move(object));
  client->devices_ = HeldRef(std::move(devices));
  PyRef id(PyLong_FromLong(first_id));
  PyObject* device = id ? PyDict_GetItemWithError(client->devices_.get(), id.get()) : nullptr;
  if (device == nullptr) return absl::UnknownError(absl::StrCat("XLA's client has no device ", first_id));
  PARKWAY_ASSIGN_OR_RETURN(client->memory_kinds_, MemoryKinds(api, device));
  return client;
}

absl::StatusOr<int> Client::MemoryKind(const std::string& kind) const {
  if (kind.empty()) return 0;
  auto found = std::find(memory_kinds_.begin(), memory_kinds_.end(), kind);
  if (found != memory_kinds_.end()) return static_cast<int>(found - memory_kinds_.begin());
  return absl::InvalidArgumentError(
      absl::StrCat("memory kind '", kind, "' is none of this platform's: ", absl::StrJoin(memory_kinds_, ", ")));
}

absl::StatusOr<DeviceSetRef> Client::Devices(const std::vector<int>& ids) {
  auto found = sets_.find(ids);
  if (found != sets_.end()) return found->second;
  PARKWAY_ASSIGN_OR_RETURN(DeviceSetRef made, MakeDeviceSet(ids));
  return sets_.try_emplace(ids, std::move(made)).first->second;  // another thread may have been faster
}

absl::StatusOr<DeviceSetRef> Client::LocalDevices(absl::Span<const int> locals) {
  std::vector<int> ids(locals.begin(), locals.end());
  for (int& id : ids) id += first_id_;
  return Devices(ids);
}

absl::StatusOr<DeviceSetRef> Client::MakeDeviceSet(const std::vector<int>& ids) {
  auto set = std::make_shared<DeviceSet>();
  set->client = number_;
  std::vector<PyObject*> all;
  std::vector<PyObject*> local;
  for (int id : ids) {
    PyRef key(PyLong_FromLong(id));
    PyObject* device = key ? PyDict_GetItemWithError(devices_.get(), key.get()) : nullptr;
    if (device == nullptr) return absl::InvalidArgumentError(absl::StrCat("XLA's client has no device ", id));
    all.push_back(device);
    if (id < first_id_ || id >= first_id_ + num_local_) continue;
    local.push_back(device);
    set->locals.push_back(id - first_id_);
  }
  set->single = all.size() == 1 && local.size() == 1;
  PARKWAY_ASSIGN_OR_RETURN(PyRef devices, ListOf(all));
  PARKWAY_ASSIGN_OR_RETURN(PyRef local_devices, ListOf(local));
  PARKWAY_ASSIGN_OR_RETURN(PyRef list, CallPython(api_.device_list, {devices.get()}));
  for (const std::string& kind : memory_kinds_) {
    PyRef name(PyUnicode_FromStringAndSize(kind.data(), static_cast<Py_ssize_t>(kind.size())));
    if (!name) return TakePythonError();
    PARKWAY_ASSIGN_OR_RETURN(PyRef sharding, all.size() == 1
                                                 ? CallPython(api_.single_sharding, {all[0], name.get()})
                                                 : CallPython(api_.shards_sharding, {list.get(), name.get()}));
    set->shardings.push_back(HeldRef(std::move(sharding)));
  }
  set->list = HeldRef(std::move(list));
  set->local_devices = HeldRef(std::move(local_devices));
  return set;
}

}  // namespace parkway::engine
