#include "engine/compiler/role.h"

#include <glog/logging.h>
#include <signal.h>

#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_wire.h"
#include "engine/compiler/compile.h"
#include "engine/compiler/frame.h"
#include "proto/parkway/compiler.pb.h"

namespace parkway::compiler {
namespace {

CompileResult Answer(absl::StatusOr<std::unique_ptr<ProgramCompiler>>& compiler, const CompileJob& job, int fd) {
  CompileResult result;
  result.set_job(job.job());
  auto started = [&](const std::string& name) {
    CompileResult progress;
    progress.set_job(job.job());
    progress.set_started(name);
    // A failure to write shows again, and is handled, when the result is sent.
    WriteFrame(fd, progress).IgnoreError();
  };
  absl::StatusOr<CompiledProgram> program = compiler.ok() ? (*compiler)->Compile(job, started) : compiler.status();
  *result.mutable_status() = ToProto(program.status());
  if (program.ok()) *result.mutable_program() = *std::move(program);
  return result;
}

absl::Status Send(int fd, CompileResult& result) {
  absl::Status sent = WriteFrame(fd, result);
  if (!absl::IsResourceExhausted(sent)) return sent;
  *result.mutable_status() = ToProto(absl::ResourceExhaustedError(
      absl::StrCat("the executable of ", result.program().name(), " is too large to pass on: ", sent.message())));
  result.clear_program();
  return WriteFrame(fd, result);
}

}  // namespace

int RunCompilerRole(int fd, const std::vector<std::string>& xla_flags) {
  signal(SIGPIPE, SIG_IGN);
  signal(SIGINT, SIG_IGN);  // Ctrl-C in the terminal is the proxy's to handle
  absl::StatusOr<std::unique_ptr<ProgramCompiler>> compiler = ProgramCompiler::Start(xla_flags);
  if (!compiler.ok()) LOG(ERROR) << "compiler: " << compiler.status();
  while (true) {
    absl::StatusOr<std::string> frame = ReadFrame(fd);
    if (absl::IsUnavailable(frame.status())) return 0;
    CompileJob job;
    if (!frame.ok() || !job.ParseFromString(*frame)) {
      LOG(ERROR) << "compiler: what came is no CompileJob";
      return 1;
    }
    CompileResult result = Answer(compiler, job, fd);
    if (absl::Status sent = Send(fd, result); !sent.ok()) return 0;
  }
}

}  // namespace parkway::compiler
