#include "engine/python_embed.h"

#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "base/status.h"

namespace parkway::engine {
namespace {

// Making a state for every Gil would cost more than what is done under most of them.
struct ThreadState {
  PyThreadState* state = nullptr;
  ~ThreadState() {
    if (state == nullptr || gettid() == getpid()) return;  // the main thread ends with the process
    PyEval_RestoreThread(state);
    PyGILState_Release(PyGILState_UNLOCKED);
  }
};

std::string PythonExecutable() {
  const char* named = getenv("PARKWAY_PYTHON");
  return named != nullptr && *named != '\0' ? named : PARKWAY_PYTHON_EXECUTABLE;
}

absl::Status OfPyStatus(const PyStatus& status, const std::string& executable) {
  return absl::FailedPreconditionError(absl::StrCat(
      "the Python of ", executable, " did not start: ", status.err_msg != nullptr ? status.err_msg : "no reason given",
      "; run `make build`, or name another one in PARKWAY_PYTHON"));
}

absl::Status Initialize(const std::string& executable) {
  if (access(executable.c_str(), X_OK) != 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("no Python at ", executable, "; run `make build`, or name one that has jaxlib in PARKWAY_PYTHON"));
  }
  PyConfig config;
  PyConfig_InitPythonConfig(&config);
  config.parse_argv = 0;
  config.install_signal_handlers = 0;
  config.use_environment = 0;
  config.user_site_directory = 0;
  config.write_bytecode = 0;
  // `executable` is how Python finds the virtual environment.
  PyStatus status = PyConfig_SetBytesString(&config, &config.executable, executable.c_str());
  if (!PyStatus_Exception(status)) status = PyConfig_SetBytesString(&config, &config.program_name, executable.c_str());
  if (!PyStatus_Exception(status)) status = Py_InitializeFromConfig(&config);
  PyConfig_Clear(&config);
  return PyStatus_Exception(status) ? OfPyStatus(status, executable) : absl::OkStatus();
}

// In a build tree Parkway's own Python modules lie beside the sources; installed, in the environment.
absl::Status AddModulePath() {
  if (access(PARKWAY_PYTHON_MODULES, R_OK) != 0) return absl::OkStatus();
  PyObject* path = PySys_GetObject("path");
  PyRef dir(PyUnicode_FromString(PARKWAY_PYTHON_MODULES));
  if (path == nullptr || !dir || PyList_Insert(path, 0, dir.get()) != 0) return TakePythonError();
  return absl::OkStatus();
}

absl::Status StartOnce() {
  struct sigaction interrupt;
  sigaction(SIGINT, nullptr, &interrupt);
  PARKWAY_RETURN_IF_ERROR(Initialize(PythonExecutable()));
  absl::Status status = AddModulePath();
  // The first import of `signal` takes SIGINT over, whatever the configuration says: import it here and put it back.
  if (status.ok()) status = ImportPython("signal").status();
  sigaction(SIGINT, &interrupt, nullptr);
  PyEval_SaveThread();
  return status;
}

}  // namespace

PyGILState_STATE Gil::Ensure() {
  static thread_local ThreadState kept;
  if (kept.state == nullptr && PyGILState_GetThisThreadState() == nullptr) {
    PyGILState_Ensure();
    kept.state = PyEval_SaveThread();
  }
  return PyGILState_Ensure();
}

absl::Status StartPython() {
  static const absl::Status* result = new absl::Status(StartOnce());
  return *result;
}

absl::Status StatusOfXlaText(absl::string_view text) {
  static constexpr const char kOther[] = "FAILED_PRECONDITION: ";
  const std::string words = absl::StrReplaceAll(
      text,
      {{"NOT_FOUND: ", kOther}, {"INTERNAL: ", kOther}, {"DATA_LOSS: ", kOther}, {"DEADLINE_EXCEEDED: ", kOther}});
  for (int code = 1; code <= 16; ++code) {
    std::string name = absl::StatusCodeToString(static_cast<absl::StatusCode>(code));
    if (absl::StartsWith(words, absl::StrCat(name, ": "))) {
      return absl::Status(static_cast<absl::StatusCode>(code), words.substr(name.size() + 2));
    }
  }
  return absl::UnknownError(words);
}

absl::Status TakePythonError() {
  PyRef error(PyErr_GetRaisedException());
  if (!error) return absl::UnknownError("a Python call failed without an exception");
  std::string type = Py_TYPE(error.get())->tp_name;
  PyRef text(PyObject_Str(error.get()));
  absl::StatusOr<std::string> message = text ? PythonString(text.get()) : absl::StatusOr<std::string>("");
  if (!text || !message.ok()) {
    PyErr_Clear();
    message = "(its text can't be read)";
  }
  if (absl::EndsWith(type, "RuntimeError")) return StatusOfXlaText(*message);
  std::string whole = absl::StrCat(type, ": ", *message);
  if (PyErr_GivenExceptionMatches(error.get(), PyExc_MemoryError)) return absl::ResourceExhaustedError(whole);
  if (PyErr_GivenExceptionMatches(error.get(), PyExc_ValueError) ||
      PyErr_GivenExceptionMatches(error.get(), PyExc_TypeError)) {
    return absl::InvalidArgumentError(whole);
  }
  return absl::UnknownError(whole);
}

absl::StatusOr<PyRef> ImportPython(const char* module) {
  PyRef imported(PyImport_ImportModule(module));
  if (imported) return imported;
  absl::Status error = TakePythonError();
  return absl::Status(error.code(), absl::StrCat("import of Python's ", module, ": ", error.message()));
}

absl::StatusOr<PyRef> PythonAttribute(PyObject* object, const char* name) {
  PyRef value(PyObject_GetAttrString(object, name));
  if (!value) return TakePythonError();
  return value;
}

absl::StatusOr<PyRef> CallPython(PyObject* object, std::initializer_list<PyObject*> arguments) {
  PyRef result(PyObject_Vectorcall(object, arguments.begin(), arguments.size(), nullptr));
  if (!result) return TakePythonError();
  return result;
}

absl::StatusOr<std::string> PythonString(PyObject* object) {
  char* bytes = nullptr;
  Py_ssize_t size = 0;
  if (PyUnicode_Check(object)) {
    const char* text = PyUnicode_AsUTF8AndSize(object, &size);
    if (text == nullptr) return TakePythonError();
    return std::string(text, size);
  }
  if (PyBytes_AsStringAndSize(object, &bytes, &size) != 0) return TakePythonError();
  return std::string(bytes, size);
}

}  // namespace parkway::engine
