#include "engine/python_embed.h"
// Python.h comes first.
#include <openssl/evp.h>

#include <algorithm>
#include <initializer_list>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/limits.h"
#include "base/machine.h"
#include "base/status.h"
#include "engine/compiler/compile.h"
#include "engine/compiler/options.h"
#include "glog/logging.h"
#include "proto/ifrt/ifrt.pb.h"
#include "proto/ifrt/xla_data.pb.h"
#include "proto/parkway/compiler.pb.h"
#include "src/engine/compiler/hlo.pb.h"

namespace parkway::compiler {
namespace {

using engine::CallPython;
using engine::Gil;
using engine::ImportPython;
using engine::PyRef;
using engine::PythonAttribute;
using engine::PythonString;

// The numbers agree but for the youngest types.
int DTypeOf(int primitive_type) {
  using xla::ifrt::DTypeProto;
  switch (primitive_type) {
    case xla::S1:
      return DTypeProto::KIND_S1;
    case xla::U1:
      return DTypeProto::KIND_U1;
    case xla::F4E2M1FN:
      return DTypeProto::KIND_F4E2M1FN;
    case xla::F8E8M0FNU:
      return DTypeProto::KIND_F8E8M0FNU;
    case xla::F6E2M3FN:
      return DTypeProto::KIND_F6E2M3FN;
    case xla::F6E3M2FN:
      return DTypeProto::KIND_F6E3M2FN;
    default:
      return primitive_type;
  }
}

// What goes in and comes out for a token is an empty array of bools: clients give one, and PJRT makes one.
template <typename Dims>
void FillType(int primitive_type, const Dims& dims, TypeProto& type) {
  if (primitive_type == xla::TOKEN) {
    type.set_dtype(xla::ifrt::DTypeProto::KIND_PRED);
    type.add_dims(0);
    return;
  }
  type.set_dtype(DTypeOf(primitive_type));
  type.mutable_dims()->Add(dims.begin(), dims.end());
}

void FillType(const xla::ShapeProto& shape, TypeProto& type) {
  FillType(shape.element_type(), shape.dimensions(), type);
}

bool IsCollective(absl::string_view opcode) {
  for (absl::string_view prefix : {"all-reduce", "all-gather", "all-to-all", "collective-", "reduce-scatter",
                                   "ragged-all-to-all", "send", "recv"}) {
    if (absl::StartsWith(opcode, prefix)) return true;
  }
  return false;
}

bool HasCollectives(const HloModule& module) {
  for (const HloComputation& computation : module.computations()) {
    for (const HloInstruction& instruction : computation.instructions()) {
      if (IsCollective(instruction.opcode())) return true;
    }
  }
  return false;
}

// What the compiled module says of itself.
absl::Status ReadModule(const std::string& serialized, int num_devices, CompiledProgram& program) {
  HloModule module;
  if (!module.ParseFromString(serialized)) {
    return absl::FailedPreconditionError(absl::StrCat("XLA's description of the compiled ", program.name(),
                                                      " can't be read; is this jaxlib a supported one?"));
  }
  for (const xla::ShapeProto& shape : module.host_program_shape().parameters()) {
    FillType(shape, *program.add_parameter_shards());
  }
  const xla::ShapeProto& result = module.host_program_shape().result();
  if (result.element_type() == xla::TUPLE) {
    for (const xla::ShapeProto& shape : result.tuple_shapes()) FillType(shape, *program.add_output_shards());
  } else {
    FillType(result, *program.add_output_shards());
  }
  std::set<int32_t> donated;
  auto insert = [&](int64_t parameter) { donated.insert(static_cast<int32_t>(parameter)); };
  for (const auto& entry : module.input_output_alias().entries()) insert(entry.parameter_number());
  for (const auto& entry : module.buffer_donor().entries()) insert(entry.parameter_number());
  program.mutable_donated()->Add(donated.begin(), donated.end());
  program.set_spans_collectives(num_devices > 1 || HasCollectives(module));
  return absl::OkStatus();
}

// ---- Python values ----

absl::StatusOr<PyRef> Item(PyObject* dict, const char* key) {
  PyObject* value = PyDict_GetItemString(dict, key);
  if (value == nullptr) return absl::FailedPreconditionError(absl::StrCat("the compiler's Python half gave no ", key));
  return PyRef::Borrow(value);
}

absl::StatusOr<std::string> StringItem(PyObject* dict, const char* key) {
  PARKWAY_ASSIGN_OR_RETURN(PyRef value, Item(dict, key));
  return PythonString(value.get());
}

// Calls visit(item) for each item of a sequence.
template <typename Visit>
absl::Status ForEach(PyObject* items, Visit visit) {
  PyRef sequence(PySequence_Fast(items, "the compiler's Python half gave no sequence"));
  if (!sequence) return engine::TakePythonError();
  for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(sequence.get()); ++i) {
    PARKWAY_RETURN_IF_ERROR(visit(PySequence_Fast_GET_ITEM(sequence.get(), i)));
  }
  return absl::OkStatus();
}

absl::Status ReadStrings(PyObject* dict, const char* key, google::protobuf::RepeatedPtrField<std::string>& out) {
  PARKWAY_ASSIGN_OR_RETURN(PyRef items, Item(dict, key));
  return ForEach(items.get(), [&](PyObject* item) -> absl::Status {
    PARKWAY_ASSIGN_OR_RETURN(*out.Add(), PythonString(item));
    return absl::OkStatus();
  });
}

// A list of (xla.PrimitiveType, [dims]).
absl::Status ReadTypes(PyObject* items, google::protobuf::RepeatedPtrField<TypeProto>& out) {
  return ForEach(items, [&](PyObject* item) -> absl::Status {
    int element = 0;
    PyObject* dims = nullptr;
    if (!PyArg_ParseTuple(item, "iO!", &element, &PyList_Type, &dims)) return engine::TakePythonError();
    std::vector<int64_t> sizes;
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(dims); ++i) sizes.push_back(PyLong_AsLongLong(PyList_GET_ITEM(dims, i)));
    FillType(element, sizes, *out.Add());
    return PyErr_Occurred() != nullptr ? engine::TakePythonError() : absl::OkStatus();
  });
}

absl::Status ReadShardings(PyObject* dict, const char* key, google::protobuf::RepeatedPtrField<std::string>& out) {
  PARKWAY_RETURN_IF_ERROR(ReadStrings(dict, key, out));
  for (const std::string& serialized : out) {
    xla::OpSharding sharding;
    if (!sharding.ParseFromString(serialized) || sharding.has_named_sharding()) {
      return absl::FailedPreconditionError("this jaxlib describes shardings in a form that Parkway does not pass on");
    }
  }
  return absl::OkStatus();
}

absl::Status ReadCosts(PyObject* dict, CompiledProgram& program) {
  PARKWAY_ASSIGN_OR_RETURN(PyRef costs, Item(dict, "costs"));
  PyObject *key = nullptr, *value = nullptr;
  for (Py_ssize_t position = 0; PyDict_Next(costs.get(), &position, &key, &value);) {
    PARKWAY_ASSIGN_OR_RETURN(std::string name, PythonString(key));
    (*program.mutable_costs())[name] = PyFloat_AsDouble(value);
  }
  return PyErr_Occurred() != nullptr ? engine::TakePythonError() : absl::OkStatus();
}

absl::Status ReadMemory(PyObject* dict, CompiledMemory& memory) {
  PARKWAY_ASSIGN_OR_RETURN(PyRef sizes, Item(dict, "memory"));
  long long code = 0, arguments = 0, outputs = 0, aliases = 0, temporaries = 0;
  if (!PyArg_ParseTuple(sizes.get(), "LLLLL", &code, &arguments, &outputs, &aliases, &temporaries)) {
    return engine::TakePythonError();
  }
  memory.set_generated_code_bytes(code);
  memory.set_argument_bytes(arguments);
  memory.set_output_bytes(outputs);
  memory.set_alias_bytes(aliases);
  memory.set_temp_bytes(temporaries);
  return absl::OkStatus();
}

// (name, parameters, outputs)
absl::Status ReadSignature(PyObject* signature, CompiledProgram& program) {
  PyObject *name = nullptr, *parameters = nullptr, *outputs = nullptr;
  if (!PyArg_ParseTuple(signature, "OOO", &name, &parameters, &outputs)) return engine::TakePythonError();
  PARKWAY_ASSIGN_OR_RETURN(*program.mutable_name(), PythonString(name));
  PARKWAY_RETURN_IF_ERROR(ReadTypes(parameters, *program.mutable_parameters()));
  return ReadTypes(outputs, *program.mutable_outputs());
}

// A call's result; the Python half gives its errors as texts.
absl::StatusOr<PyRef> CallHalf(PyObject* function, std::initializer_list<PyObject*> arguments) {
  PARKWAY_ASSIGN_OR_RETURN(PyRef result, CallPython(function, arguments));
  if (!PyUnicode_Check(result.get())) return result;
  PARKWAY_ASSIGN_OR_RETURN(std::string error, PythonString(result.get()));
  return engine::StatusOfXlaText(error);
}

absl::Status ReadDescription(PyObject* dict, int num_devices, CompiledProgram& program) {
  PARKWAY_ASSIGN_OR_RETURN(*program.mutable_name(), StringItem(dict, "name"));
  PARKWAY_ASSIGN_OR_RETURN(*program.mutable_executable(), StringItem(dict, "executable"));
  PARKWAY_ASSIGN_OR_RETURN(*program.mutable_text(), StringItem(dict, "text"));
  PARKWAY_ASSIGN_OR_RETURN(std::string hlo, StringItem(dict, "hlo"));
  PARKWAY_RETURN_IF_ERROR(ReadModule(hlo, num_devices, program));
  PARKWAY_RETURN_IF_ERROR(ReadShardings(dict, "parameter_shardings", *program.mutable_parameter_shardings()));
  PARKWAY_RETURN_IF_ERROR(ReadShardings(dict, "output_shardings", *program.mutable_output_shardings()));
  PARKWAY_RETURN_IF_ERROR(ReadStrings(dict, "parameter_layouts", *program.mutable_parameter_layouts()));
  PARKWAY_RETURN_IF_ERROR(ReadStrings(dict, "output_layouts", *program.mutable_output_layouts()));
  PARKWAY_RETURN_IF_ERROR(ReadStrings(dict, "output_memory_kinds", *program.mutable_output_memory_kinds()));
  PARKWAY_RETURN_IF_ERROR(ReadMemory(dict, *program.mutable_memory()));
  return ReadCosts(dict, program);
}

// A program that claims more or fewer arguments than it was compiled for would be launched wrongly.
absl::Status CheckCounts(const CompiledProgram& program) {
  const int parameters = program.parameters_size(), outputs = program.outputs_size();
  auto fits = [](int size, int want, bool may_be_empty) { return size == want || (may_be_empty && size == 0); };
  if (fits(program.parameter_shards_size(), parameters, false) && fits(program.output_shards_size(), outputs, false) &&
      fits(program.parameter_shardings_size(), parameters, true) &&
      fits(program.output_shardings_size(), outputs, true) &&
      fits(program.output_memory_kinds_size(), outputs, false)) {
    return absl::OkStatus();
  }
  return absl::UnimplementedError(absl::StrFormat(
      "%s has %d parameters and %d outputs, but was compiled to one with %d and %d: tuples as arguments are not "
      "supported",
      program.name(), parameters, outputs, program.parameter_shards_size(), program.output_shards_size()));
}

// ---- Fingerprint ----

// SHA-256: executables are looked up by it, also those of other clients, so nobody may be able to make two that agree.
std::string Fingerprint(const CompileJob& job, const std::string& options, const std::string& build) {
  std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> hash(EVP_MD_CTX_new(), &EVP_MD_CTX_free);
  EVP_DigestInit_ex(hash.get(), EVP_sha256(), nullptr);
  for (const std::string* part : {&job.platform(), &job.program(), &options, &build}) {
    const uint64_t size = part->size();
    EVP_DigestUpdate(hash.get(), &size, sizeof(size));
    EVP_DigestUpdate(hash.get(), part->data(), part->size());
  }
  std::string digest(EVP_MD_size(EVP_sha256()), '\0');
  EVP_DigestFinal_ex(hash.get(), reinterpret_cast<unsigned char*>(digest.data()), nullptr);
  return absl::BytesToHexString(digest);
}

absl::Status CheckJob(const CompileJob& job) {
  if (job.platform() != "cpu" && job.platform() != "sim") {
    return absl::UnimplementedError(absl::StrCat("this compiler makes programs for cpu, not for ", job.platform()));
  }
  const int most = job.platform() == "cpu" ? limits::kMaxContextRanks : limits::kMaxSimDevices;
  if (job.num_devices() > most) {
    return absl::UnimplementedError(absl::StrCat("a program over ", job.num_devices(), " devices: on platform ",
                                                 job.platform(), " one program can span at most ", most));
  }
  if (job.num_devices() < 1) return absl::InvalidArgumentError("a program was given no device");
  if (!absl::StartsWith(job.program(), "ML\xefR")) {
    return absl::InvalidArgumentError("the program is no StableHLO artifact: it does not begin as MLIR bytecode does");
  }
  return absl::OkStatus();
}

// The Python half tries each flag on a small program; XLA would end the process at one of XLA_FLAGS that it doesn't
// know.
absl::Status SetFlags(PyObject* module, const std::vector<std::string>& xla_flags) {
  if (xla_flags.empty()) return absl::OkStatus();
  PyRef list(PyList_New(0));
  for (const std::string& flag : xla_flags) {
    PyRef text(PyUnicode_FromStringAndSize(flag.data(), static_cast<Py_ssize_t>(flag.size())));
    if (!text || PyList_Append(list.get(), text.get()) != 0) return engine::TakePythonError();
  }
  PARKWAY_ASSIGN_OR_RETURN(PyRef set_flags, PythonAttribute(module, "set_flags"));
  PARKWAY_ASSIGN_OR_RETURN(PyRef refused, CallPython(set_flags.get(), {list.get()}));
  return ForEach(refused.get(), [](PyObject* item) -> absl::Status {
    PARKWAY_ASSIGN_OR_RETURN(std::string why, PythonString(item));
    LOG(WARNING) << "An XLA flag has no effect: " << why;
    return absl::OkStatus();
  });
}

}  // namespace

// References that live as long as the process.
struct ProgramCompiler::Python {
  PyObject* read = nullptr;
  PyObject* compile = nullptr;
  std::string build;  // version and processor: what an executable depends on besides its program
};

ProgramCompiler::ProgramCompiler(std::unique_ptr<Python> python) : python_(std::move(python)) {}
ProgramCompiler::~ProgramCompiler() = default;

absl::StatusOr<std::unique_ptr<ProgramCompiler>> ProgramCompiler::Start(const std::vector<std::string>& xla_flags) {
  PARKWAY_RETURN_IF_ERROR(engine::StartPython());
  Gil gil;
  PARKWAY_ASSIGN_OR_RETURN(PyRef module, ImportPython("parkway._compiler"));
  PARKWAY_ASSIGN_OR_RETURN(PyRef warm, PythonAttribute(module.get(), "warm"));
  PyRef one(PyLong_FromLong(1));
  PARKWAY_RETURN_IF_ERROR(CallPython(warm.get(), {one.get()}).status());
  PARKWAY_RETURN_IF_ERROR(SetFlags(module.get(), xla_flags));
  PARKWAY_ASSIGN_OR_RETURN(PyRef build, PythonAttribute(module.get(), "build"));
  PARKWAY_ASSIGN_OR_RETURN(PyRef version, CallPython(build.get(), {}));
  PARKWAY_ASSIGN_OR_RETURN(PyRef read, PythonAttribute(module.get(), "read"));
  PARKWAY_ASSIGN_OR_RETURN(PyRef compile, PythonAttribute(module.get(), "compile"));
  auto python = std::make_unique<Python>();
  PARKWAY_ASSIGN_OR_RETURN(python->build, PythonString(version.get()));
  absl::StrAppend(&python->build, "\n", CpuFeatures(), "\n", absl::StrJoin(xla_flags, " "));
  python->read = read.release();
  python->compile = compile.release();
  return std::unique_ptr<ProgramCompiler>(new ProgramCompiler(std::move(python)));
}

absl::StatusOr<CompiledProgram> ProgramCompiler::Compile(const CompileJob& job,
                                                         absl::FunctionRef<void(const std::string&)> started) {
  PARKWAY_RETURN_IF_ERROR(CheckJob(job));
  CompiledProgram program;
  PARKWAY_ASSIGN_OR_RETURN(*program.mutable_compile_options(),
                           NormaliseOptions(job.compile_options(), job.num_devices()));
  program.set_fingerprint(Fingerprint(job, program.compile_options(), python_->build));
  Gil gil;
  PyRef source(PyBytes_FromStringAndSize(job.program().data(), static_cast<Py_ssize_t>(job.program().size())));
  PyRef options(PyBytes_FromStringAndSize(program.compile_options().data(),
                                          static_cast<Py_ssize_t>(program.compile_options().size())));
  PyRef devices(PyLong_FromLong(job.num_devices()));
  if (!source || !options || !devices) return engine::TakePythonError();
  PARKWAY_ASSIGN_OR_RETURN(PyRef signature, CallHalf(python_->read, {source.get()}));
  PARKWAY_RETURN_IF_ERROR(ReadSignature(signature.get(), program));
  started(program.name());
  PARKWAY_ASSIGN_OR_RETURN(PyRef result, CallHalf(python_->compile, {source.get(), options.get(), devices.get()}));
  PARKWAY_RETURN_IF_ERROR(ReadDescription(result.get(), job.num_devices(), program));
  PARKWAY_RETURN_IF_ERROR(CheckCounts(program));
  return program;
}

}  // namespace parkway::compiler
