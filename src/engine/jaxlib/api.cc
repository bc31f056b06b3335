#include "engine/jaxlib/api.h"

#include <signal.h>
#include <stdlib.h>

#include <algorithm>
#include <thread>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/limits.h"
#include "base/status.h"
#include "engine/jaxlib/numpy.h"
#include "engine/jaxlib/setup_script.h"

namespace parkway::engine {
namespace {

constexpr ifrt::DType kArrayTypes[] = {
    ifrt::DType::kPred,      ifrt::DType::kS1,         ifrt::DType::kS2,         ifrt::DType::kS4,
    ifrt::DType::kS8,        ifrt::DType::kS16,        ifrt::DType::kS32,        ifrt::DType::kS64,
    ifrt::DType::kU1,        ifrt::DType::kU2,         ifrt::DType::kU4,         ifrt::DType::kU8,
    ifrt::DType::kU16,       ifrt::DType::kU32,        ifrt::DType::kU64,        ifrt::DType::kF16,
    ifrt::DType::kF32,       ifrt::DType::kF64,        ifrt::DType::kBF16,       ifrt::DType::kC64,
    ifrt::DType::kC128,      ifrt::DType::kF8E3M4,     ifrt::DType::kF8E4M3,     ifrt::DType::kF8E4M3FN,
    ifrt::DType::kF8E5M2,    ifrt::DType::kF8E5M2FNUZ, ifrt::DType::kF8E4M3FNUZ, ifrt::DType::kF8E4M3B11FNUZ,
    ifrt::DType::kF8E8M0FNU, ifrt::DType::kF4E2M1FN,
};

// Runs setup.py as the module that the rest is taken from. Its dictionary stays for ever.
absl::StatusOr<PyObject*> RunSetup() {
  PyObject* module = PyModule_New("parkway_engine");
  if (module == nullptr) return TakePythonError();
  PyObject* names = PyModule_GetDict(module);
  PyRef code(Py_CompileString(kSetupScript, "engine/jaxlib/setup.py", Py_file_input));
  if (!code || PyDict_SetItemString(names, "__builtins__", PyEval_GetBuiltins()) != 0) return TakePythonError();
  PyRef result(PyEval_EvalCode(code.get(), names, names));
  if (!result) return Annotate(TakePythonError(), "setting up jaxlib");
  return module;
}

absl::Status ReadTypes(PyObject* module, Api& api) {
  PARKWAY_ASSIGN_OR_RETURN(PyRef dtypes, PythonAttribute(module, "dtypes"));
  for (ifrt::DType type : kArrayTypes) {
    PyObject* dtype = PyDict_GetItemString(dtypes.get(), std::string(ifrt::Name(type)).c_str());
    if (dtype != nullptr) api.dtypes[type] = Py_NewRef(dtype);
  }
  return absl::OkStatus();
}

absl::StatusOr<const Api*> MakeApi() {
  signal(SIGPIPE, SIG_IGN);  // a peer's death is an error, not a signal
  PARKWAY_RETURN_IF_ERROR(StartPython());
  Gil gil;
  PARKWAY_RETURN_IF_ERROR(ImportNumpy());
  PARKWAY_ASSIGN_OR_RETURN(PyObject * module, RunSetup());
  auto api = std::make_unique<Api>();
  for (auto [member, name] :
       std::initializer_list<std::pair<PyObject**, const char*>>{{&api->aval, "Aval"},
                                                                 {&api->array_type, "array_type"},
                                                                 {&api->always_copy, "always_copy"},
                                                                 {&api->batched_device_put, "batched_device_put"},
                                                                 {&api->collect_clients, "collect_clients"},
                                                                 {&api->collect_garbage, "collect_garbage"},
                                                                 {&api->connect, "connect"},
                                                                 {&api->context_client, "context_client"},
                                                                 {&api->copy_arrays, "copy_arrays"},
                                                                 {&api->device_list, "device_list"},
                                                                 {&api->devices_by_id, "devices_by_id"},
                                                                 {&api->initialize_lapack, "initialize_lapack"},
                                                                 {&api->load, "load"},
                                                                 {&api->local_client, "local_client"},
                                                                 {&api->memory_kinds, "memory_kinds"},
                                                                 {&api->shards_sharding, "shards_sharding"},
                                                                 {&api->result_handler, "result_handler"},
                                                                 {&api->single_sharding, "single_sharding"}}) {
    PARKWAY_ASSIGN_OR_RETURN(PyRef value, PythonAttribute(module, name));
    *member = value.release();
  }
  for (auto [member, name] : std::initializer_list<std::pair<PyObject**, const char*>>{
           {&api->name_arrays, "_arrays"},
           {&api->name_block_until_ready, "block_until_ready"},
           {&api->name_consume_token, "consume_token"},
           {&api->name_consume_with_handlers, "consume_with_handlers"},
           {&api->name_is_deleted, "is_deleted"},
           {&api->name_is_ready, "is_ready"},
           {&api->name_to_numpy, "_single_device_array_to_np_array_did_copy"}}) {
    *member = PyUnicode_InternFromString(name);
    if (*member == nullptr) return TakePythonError();
  }
  api->keywords_x64 = Py_BuildValue("(s)", "enable_x64");
  api->keywords_tokens = Py_BuildValue("(s)", "with_tokens");
  PARKWAY_ASSIGN_OR_RETURN(PyRef version, PythonAttribute(module, "version"));
  PARKWAY_ASSIGN_OR_RETURN(api->version, PythonString(version.get()));
  PARKWAY_RETURN_IF_ERROR(ReadTypes(module, *api));
  PARKWAY_ASSIGN_OR_RETURN(PyRef settle, PythonAttribute(module, "settle"));
  PARKWAY_RETURN_IF_ERROR(CallPython(settle.get(), {}).status());
  return api.release();
}

}  // namespace

void SetPoolThreads(int devices) {
  const int threads =
      std::max({devices, static_cast<int>(std::thread::hardware_concurrency()), limits::kFewestXlaPoolThreads});
  setenv("NPROC", absl::StrCat(threads).c_str(), /*overwrite=*/0);
}

int PoolThreads() {
  int threads = 0;
  const char* text = std::getenv("NPROC");
  return text != nullptr && absl::SimpleAtoi(text, &threads) && threads > 0 ? threads : 1;
}

absl::StatusOr<const Api*> GetApi() {
  static const auto* api = new absl::StatusOr<const Api*>(MakeApi());
  return *api;
}

absl::Status InitializeLapack(const Api& api) {
  static bool initialized = false;  // guarded by the GIL; twice does no harm
  if (initialized) return absl::OkStatus();
  PARKWAY_RETURN_IF_ERROR(CallPython(api.initialize_lapack, {}).status());
  initialized = true;
  return absl::OkStatus();
}

absl::StatusOr<PyRef> Aval(const Api& api, const Type& type) {
  auto dtype = api.dtypes.find(type.dtype);
  if (dtype == api.dtypes.end()) {
    return absl::InvalidArgumentError(absl::StrCat("arrays of type ", ifrt::Name(type.dtype), " can't be on a device"));
  }
  PyRef shape(PyTuple_New(static_cast<Py_ssize_t>(type.dims.size())));
  if (!shape) return TakePythonError();
  for (size_t i = 0; i < type.dims.size(); ++i) {
    PyObject* size = PyLong_FromLongLong(type.dims[i]);
    if (size == nullptr) return TakePythonError();
    PyTuple_SET_ITEM(shape.get(), i, size);
  }
  return CallPython(api.aval, {shape.get(), dtype->second});
}

absl::StatusOr<PyRef> ListOf(absl::Span<PyObject* const> objects) {
  PyRef list(PyList_New(static_cast<Py_ssize_t>(objects.size())));
  if (!list) return TakePythonError();
  for (size_t i = 0; i < objects.size(); ++i) PyList_SET_ITEM(list.get(), i, Py_NewRef(objects[i]));
  return list;
}

absl::StatusOr<PyRef> ListOf(absl::Span<const int> numbers) {
  PyRef list(PyList_New(static_cast<Py_ssize_t>(numbers.size())));
  if (!list) return TakePythonError();
  for (size_t i = 0; i < numbers.size(); ++i) {
    PyObject* number = PyLong_FromLong(numbers[i]);
    if (number == nullptr) return TakePythonError();
    PyList_SET_ITEM(list.get(), i, number);
  }
  return list;
}

}  // namespace parkway::engine
