#include "engine/jaxlib/array.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "engine/jaxlib/numpy.h"

namespace parkway::engine {
namespace {

uint64_t CommonClient(const std::vector<ShardRef>& shards) {
  const uint64_t first = shards[0]->set->client;
  const bool same =
      std::all_of(shards.begin(), shards.end(), [&](const ShardRef& s) { return s->set->client == first; });
  return same ? first : 0;
}

}  // namespace

JaxArray::JaxArray(const Api& api, ArrayLayoutRef layout, DeviceSetRef set, HeldRef whole, CompletionRef completion)
    : api_(api),
      layout_(std::move(layout)),
      home_(set->client),
      completions_({std::move(completion)}),
      set_(std::move(set)),
      whole_(std::move(whole)) {}

JaxArray::JaxArray(const Api& api, ArrayLayoutRef layout, std::vector<ShardRef> shards,
                   std::vector<CompletionRef> completions)
    : api_(api),
      layout_(std::move(layout)),
      home_(CommonClient(shards)),
      completions_(std::move(completions)),
      shards_(std::move(shards)) {}

int JaxArray::Position(int device) const {
  auto found = std::find(layout_->devices.begin(), layout_->devices.end(), device);
  return found == layout_->devices.end() ? -1 : static_cast<int>(found - layout_->devices.begin());
}

absl::Status JaxArray::status() const {
  if (donated_) return absl::FailedPreconditionError("the array was donated to an earlier launch");
  for (const CompletionRef& completion : completions_) {
    if (completion != nullptr) PARKWAY_RETURN_IF_ERROR(completion->status());
  }
  return absl::OkStatus();
}

absl::StatusOr<PyObject*> JaxArray::On(const DeviceSetRef& set) {
  if (set == set_) return whole_.get();
  for (const auto& [other, array] : wrapped_) {
    if (other == set) return array.get();
  }
  PARKWAY_ASSIGN_OR_RETURN(PyRef made, Wrap(*set));
  return wrapped_.emplace_back(set, HeldRef(std::move(made))).second.get();
}

absl::StatusOr<PyRef> JaxArray::Wrap(const DeviceSet& set) {
  std::vector<ShardRef> shards;
  std::vector<PyObject*> arrays;
  bool foreign = false;
  for (int device : set.locals) {
    PARKWAY_ASSIGN_OR_RETURN(ShardRef shard, ShardOn(device));
    foreign |= shard->set->client != set.client;
    arrays.push_back(shard->array.get());
    shards.push_back(std::move(shard));
  }
  if (foreign) return Adopt(set, shards);
  if (set.single) return PyRef::Borrow(arrays[0]);
  PARKWAY_ASSIGN_OR_RETURN(PyRef list, ListOf(arrays));
  return OverDevices(api_, type(set.locals[0]), set, layout_->memory_kind, list.get());
}

absl::StatusOr<PyRef> JaxArray::Adopt(const DeviceSet& set, const std::vector<ShardRef>& shards) {
  PyRef views(PyList_New(0));
  if (!views) return TakePythonError();
  for (const ShardRef& shard : shards) {
    PyRef view(PyObject_CallMethodNoArgs(shard->array.get(), api_.name_to_numpy));
    if (!view || PyList_Append(views.get(), PyTuple_GET_ITEM(view.get(), 0)) != 0) return TakePythonError();
  }
  return PutNumpy(api_, type(set.locals[0]), set, layout_->memory_kind, views.get());
}

absl::StatusOr<ShardRef> JaxArray::ShardOn(int device) {
  if (donated_) return status();
  if (shards_.empty()) {
    PyRef arrays(set_->single ? PyList_New(0) : PyObject_GetAttr(whole_.get(), api_.name_arrays));
    if (!arrays) return TakePythonError();
    std::vector<ShardRef> shards;
    for (size_t i = 0; i < layout_->devices.size(); ++i) {
      PyObject* array = set_->single ? whole_.get() : PyList_GetItem(arrays.get(), static_cast<Py_ssize_t>(i));
      if (array == nullptr) return TakePythonError();
      shards.push_back(std::make_shared<Shard>(Shard{HeldRef(PyRef::Borrow(array)), set_}));
    }
    if (shards_.empty()) shards_ = std::move(shards);
  }
  return shards_[Position(device)];
}

bool JaxArray::SharesShards() const {
  return std::any_of(shards_.begin(), shards_.end(), [](const ShardRef& shard) { return shard.use_count() > 1; });
}

void JaxArray::Donate() {
  donated_ = true;
  whole_ = HeldRef();
  set_ = nullptr;
  shards_.clear();
  wrapped_.clear();
}

absl::StatusOr<Bytes> JaxArray::ViewReady(int device) {
  Gil gil;
  PARKWAY_ASSIGN_OR_RETURN(ShardRef shard, ShardOn(device));
  PyRef view(PyObject_CallMethodNoArgs(shard->array.get(), api_.name_to_numpy));
  if (!view) return TakePythonError();
  return BytesOfNumpy(PyRef::Borrow(PyTuple_GET_ITEM(view.get(), 0)), shard->set);
}

absl::StatusOr<PyRef> OverDevices(const Api& api, const Type& type, const DeviceSet& set, int memory_kind,
                                  PyObject* arrays) {
  PARKWAY_ASSIGN_OR_RETURN(PyRef aval, Aval(api, type));
  return CallPython(api.array_type, {aval.get(), set.shardings[memory_kind].get(), arrays, Py_True, Py_True});
}

absl::StatusOr<PyRef> PutNumpy(const Api& api, const Type& type, const DeviceSet& set, int memory_kind,
                               PyObject* numpy_list) {
  PARKWAY_ASSIGN_OR_RETURN(PyRef aval, Aval(api, type));
  PyObject* call[] = {aval.get(), set.shardings[memory_kind].get(), numpy_list, set.local_devices.get(), Py_True};
  PyRef array(PyObject_Vectorcall(api.batched_device_put, call, 4, api.keywords_x64));
  if (!array) return TakePythonError();
  return array;
}

}  // namespace parkway::engine
