#include "engine/jaxlib/numpy.h"

#define NPY_NO_DEPRECATED_API NPY_2_0_API_VERSION
#include <numpy/arrayobject.h>

#include <memory>
#include <vector>

#include "engine/jaxlib/references.h"

namespace parkway::engine {
namespace {

constexpr char kOwner[] = "parkway.bytes";

void DropOwner(PyObject* capsule) {
  delete static_cast<std::shared_ptr<const void>*>(PyCapsule_GetPointer(capsule, kOwner));
}

// The reference goes before what it needs.
using Owner = std::pair<std::shared_ptr<const void>, HeldRef>;

}  // namespace

absl::Status ImportNumpy() {
  if (_import_array() < 0) return TakePythonError();
  return absl::OkStatus();
}

absl::StatusOr<PyRef> NumpyOfBytes(PyObject* dtype, absl::Span<const int64_t> dims, Bytes bytes) {
  auto owner = std::make_unique<std::shared_ptr<const void>>(std::move(bytes.owner));
  PyRef capsule(PyCapsule_New(owner.get(), kOwner, DropOwner));
  if (!capsule) return TakePythonError();
  (void)owner.release();  // the capsule's now
  std::vector<npy_intp> shape(dims.begin(), dims.end());
  static uint8_t nothing[64];  // an empty array needs an address too
  void* data = bytes.data == nullptr ? nothing : const_cast<uint8_t*>(bytes.data);
  PyRef array(PyArray_NewFromDescr(&PyArray_Type, reinterpret_cast<PyArray_Descr*>(Py_NewRef(dtype)),
                                   static_cast<int>(shape.size()), shape.data(), nullptr, data,
                                   NPY_ARRAY_C_CONTIGUOUS | NPY_ARRAY_ALIGNED, nullptr));
  if (!array) return TakePythonError();
  if (PyArray_SetBaseObject(reinterpret_cast<PyArrayObject*>(array.get()), capsule.release()) != 0) {
    return TakePythonError();
  }
  return array;
}

absl::StatusOr<Bytes> BytesOfNumpy(PyRef array, std::shared_ptr<const void> keep) {
  if (!PyArray_Check(array.get())) return absl::UnknownError("jaxlib gave something else than a numpy array");
  if (!PyArray_IS_C_CONTIGUOUS(reinterpret_cast<PyArrayObject*>(array.get()))) {
    array = PyRef(PyArray_NewCopy(reinterpret_cast<PyArrayObject*>(array.get()), NPY_CORDER));
    if (!array) return TakePythonError();
  }
  auto* dense = reinterpret_cast<PyArrayObject*>(array.get());
  Bytes bytes;
  bytes.data = static_cast<const uint8_t*>(PyArray_DATA(dense));
  bytes.size = PyArray_NBYTES(dense);
  bytes.owner = std::make_shared<Owner>(std::move(keep), HeldRef(std::move(array)));
  return bytes;
}

}  // namespace parkway::engine
