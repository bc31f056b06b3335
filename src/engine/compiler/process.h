// One compiler process as its pool sees it: a child at the other end of a socket pair that is given a job at a time.
//
// Run and Alive belong to one thread; Kill and MemoryBytes may come from any other while Run waits.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "base/subprocess.h"

namespace parkway {
class CompileJob;
class CompileResult;
}  // namespace parkway

namespace parkway::compiler {

class CompilerProcess {
 public:
  // Runs `argv` with --fd=N appended. It warms up by itself; jobs may be sent at once.
  static absl::StatusOr<std::unique_ptr<CompilerProcess>> Start(
      std::vector<std::string> argv, const std::vector<std::pair<std::string, std::string>>& env);
  ~CompilerProcess();  // kills it
  CompilerProcess(const CompilerProcess&) = delete;
  CompilerProcess& operator=(const CompilerProcess&) = delete;

  // False once it has closed its end, as it does by dying.
  bool Alive() const;
  // Sends the job and waits for the result, however long; `started` hears the program's name on the way. UNAVAILABLE
  // when the process ended instead, INVALID_ARGUMENT when what came is no answer to this job: it is of no use any more
  // then. RESOURCE_EXHAUSTED: the job is over the size of a message, and was not sent.
  absl::StatusOr<CompileResult> Run(const CompileJob& job, absl::FunctionRef<void(const std::string& name)> started);
  void Kill();
  // Resident memory; 0 when it has ended.
  int64_t MemoryBytes() const;
  // "killed by signal 11", once Run has returned UNAVAILABLE.
  std::string EndInWords();

 private:
  CompilerProcess(std::unique_ptr<Subprocess> child, int fd);
  std::unique_ptr<Subprocess> child_;
  int fd_;
};

}  // namespace parkway::compiler
