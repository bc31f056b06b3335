// jaxlib's Python objects that the engine calls, looked up once, and the conversions between its values and ours. All
// of it is immutable after GetApi and lives as long as the process.
//
// Include this in .cc files only: it brings Python.h.
#pragma once

#include <string>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "engine/engine.h"
#include "engine/python_embed.h"

namespace parkway::engine {

struct Api {
  std::string version;
  absl::flat_hash_map<ifrt::DType, PyObject*> dtypes;  // numpy's

  // Functions and types of setup.py.
  PyObject* aval;
  PyObject* array_type;
  PyObject* always_copy;
  PyObject* batched_device_put;
  PyObject* collect_clients;
  PyObject* collect_garbage;
  PyObject* connect;
  PyObject* context_client;
  PyObject* copy_arrays;
  PyObject* device_list;
  PyObject* devices_by_id;
  PyObject* initialize_lapack;
  PyObject* load;
  PyObject* local_client;
  PyObject* memory_kinds;
  PyObject* shards_sharding;
  PyObject* result_handler;
  PyObject* single_sharding;

  // Names of methods and attributes.
  PyObject* name_arrays;
  PyObject* name_block_until_ready;
  PyObject* name_consume_token;
  PyObject* name_consume_with_handlers;
  PyObject* name_is_deleted;
  PyObject* name_is_ready;
  PyObject* name_to_numpy;
  PyObject* keywords_x64;     // ("enable_x64",)
  PyObject* keywords_tokens;  // ("with_tokens",)
};

// Starts Python and jaxlib at the first call, about 0.3 s. FAILED_PRECONDITION says what is missing. Any thread,
// without the GIL.
absl::StatusOr<const Api*> GetApi();

// XLA sizes each pool of a client (the one that runs programs, the one for parts of an operation) by one number, which
// it takes from the environment: a thread for each device and core. More of them would get in each other's way, fewer
// would not run the devices side by side. Before the first client; a user's own NPROC stays.
void SetPoolThreads(int devices);
int PoolThreads();

// Registers LAPACK's custom calls with XLA; the first call takes about 100 ms. Needs the GIL.
absl::Status InitializeLapack(const Api& api);

// What follows needs the GIL.

// jaxlib's idea of a type.
absl::StatusOr<PyRef> Aval(const Api& api, const Type& type);
// A list of new references to `objects`.
absl::StatusOr<PyRef> ListOf(absl::Span<PyObject* const> objects);
absl::StatusOr<PyRef> ListOf(absl::Span<const int> numbers);

}  // namespace parkway::engine
