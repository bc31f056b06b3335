// One program after the other through jaxlib, in this process: CompileJob in, CompiledProgram out. The Python half is
// python/parkway/_compiler.py; what needs protobuf is done here. One thread.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"

namespace parkway {
class CompileJob;
class CompiledProgram;
}  // namespace parkway

namespace parkway::compiler {

class ProgramCompiler {
 public:
  // Starts Python, imports jaxlib and makes a first client (0.2 s). FAILED_PRECONDITION says what is missing.
  // `xla_flags`: "name=value", for each program that has no value of its own for the name; what this XLA does not take
  // is left out with a warning.
  static absl::StatusOr<std::unique_ptr<ProgramCompiler>> Start(const std::vector<std::string>& xla_flags);
  ~ProgramCompiler();

  // XLA's own errors keep their code and text. INVALID_ARGUMENT: no StableHLO artifact, or options that don't fit the
  // devices. UNIMPLEMENTED: another platform than "cpu" or "sim", host callbacks, more devices than the platform spans.
  // `started` is told the program's name before the long part begins.
  absl::StatusOr<CompiledProgram> Compile(const CompileJob& job,
                                          absl::FunctionRef<void(const std::string& name)> started);

 private:
  struct Python;
  explicit ProgramCompiler(std::unique_ptr<Python> python);
  std::unique_ptr<Python> python_;
};

}  // namespace parkway::compiler
