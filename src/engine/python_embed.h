// The Python interpreter inside a process that drives jaxlib: an engine or a compiler. One interpreter for each
// process, started once and never finalised (jaxlib's threads outlive main). After StartPython no thread holds the GIL:
// whoever touches a Python object opens a Gil first. A PyRef owns one reference and must be dropped with the GIL held.
//
// Include this in .cc files only: it brings Python.h.
#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace parkway::engine {

class PyRef {
 public:
  PyRef() = default;
  // Takes over a new reference.
  explicit PyRef(PyObject* object) : object_(object) {}
  static PyRef Borrow(PyObject* object) { return PyRef(Py_XNewRef(object)); }
  PyRef(PyRef&& other) noexcept : object_(other.release()) {}
  PyRef& operator=(PyRef&& other) noexcept {
    PyObject* old = object_;
    object_ = other.release();
    Py_XDECREF(old);
    return *this;
  }
  PyRef(const PyRef&) = delete;
  PyRef& operator=(const PyRef&) = delete;
  ~PyRef() { Py_XDECREF(object_); }

  PyObject* get() const { return object_; }
  PyObject* release() { return std::exchange(object_, nullptr); }
  explicit operator bool() const { return object_ != nullptr; }

 private:
  PyObject* object_ = nullptr;
};

// Holds the GIL while it lives; may be nested. A thread keeps its Python state from the first one to its end.
class Gil {
 public:
  Gil() : state_(Ensure()) {}
  ~Gil() { PyGILState_Release(state_); }
  Gil(const Gil&) = delete;
  Gil& operator=(const Gil&) = delete;

 private:
  static PyGILState_STATE Ensure();

  PyGILState_STATE state_;
};

// Lets other threads have the GIL while it lives; the thread must hold it.
class GilRelease {
 public:
  GilRelease() : state_(PyEval_SaveThread()) {}
  ~GilRelease() { PyEval_RestoreThread(state_); }
  GilRelease(const GilRelease&) = delete;
  GilRelease& operator=(const GilRelease&) = delete;

 private:
  PyThreadState* state_;
};

// Starts the interpreter of the virtual environment that Parkway was built for (environment variable PARKWAY_PYTHON
// names another one), without signal handlers and blind to the user's PYTHON* variables. SIGINT keeps its disposition,
// though jaxlib's imports touch it. FAILED_PRECONDITION says what is missing. Later calls return the first one's
// result.
absl::Status StartPython();

// All that follows needs the GIL.

// The pending Python exception, cleared, as a Status: an error of XLA's keeps its code and its text.
absl::Status TakePythonError();
absl::StatusOr<PyRef> ImportPython(const char* module);
absl::StatusOr<PyRef> PythonAttribute(PyObject* object, const char* name);
// object(arguments...): borrows the arguments.
absl::StatusOr<PyRef> CallPython(PyObject* object, std::initializer_list<PyObject*> arguments);
// The bytes of a bytes or str object.
absl::StatusOr<std::string> PythonString(PyObject* object);

// "INVALID_ARGUMENT: text" -> the code and "text"; any other text is UNKNOWN. Clients take NOT_FOUND, INTERNAL,
// DATA_LOSS and DEADLINE_EXCEEDED for a lost slice, also inside a text: all are FAILED_PRECONDITION here. Needs no GIL.
absl::Status StatusOfXlaText(absl::string_view text);

}  // namespace parkway::engine
