// Array bytes in and out of numpy, without copies. Needs the GIL throughout.
//
// Include this in .cc files only: it brings Python.h.
#pragma once

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/bytes.h"
#include "engine/python_embed.h"

namespace parkway::engine {

// Loads numpy's C API; once, before the rest.
absl::Status ImportNumpy();

// A read-only row-major numpy array of `dtype` over `bytes`, which it keeps alive. `bytes` must have the size.
absl::StatusOr<PyRef> NumpyOfBytes(PyObject* dtype, absl::Span<const int64_t> dims, Bytes bytes);

// The dense row-major bytes of a numpy array, which they keep alive, and `keep` too; a copy when the array is laid out
// otherwise.
absl::StatusOr<Bytes> BytesOfNumpy(PyRef array, std::shared_ptr<const void> keep);

}  // namespace parkway::engine
