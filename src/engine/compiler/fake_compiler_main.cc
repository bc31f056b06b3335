// Stands in for a compiler process in tests of the pool: the program's text says what to do.
//   answer            a CompiledProgram that names the job's platform and this process
//   fail TEXT         INVALID_ARGUMENT with TEXT
//   sleep SECONDS     then answers
//   wait PATH         answers once that file is there
//   crash             abort(), after saying that it began
//   exit              exit(3)
//   eat MIB           takes so much memory, then sleeps
//   nonsense          answers another job
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include <cstring>
#include <sstream>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_wire.h"
#include "engine/compiler/frame.h"
#include "proto/parkway/compiler.pb.h"

namespace parkway::compiler {
namespace {

void Obey(const CompileJob& job, CompileResult& result) {
  std::istringstream in(job.program());
  std::string verb, rest;
  in >> verb;
  std::getline(in >> std::ws, rest);
  result.mutable_program()->set_name(absl::StrCat("jit_", verb));
  result.mutable_program()->set_text(absl::StrCat(getpid()));
  result.mutable_program()->set_executable(rest);
  if (verb == "fail") *result.mutable_status() = ToProto(absl::InvalidArgumentError(rest));
  if (verb == "sleep") usleep(static_cast<useconds_t>(atof(rest.c_str()) * 1e6));
  while (verb == "wait" && access(rest.c_str(), F_OK) != 0) usleep(1000);
  if (verb == "crash") {
    signal(SIGABRT, SIG_DFL);
    abort();
  }
  if (verb == "exit") exit(3);
  if (verb == "eat") {
    std::vector<char> memory(static_cast<size_t>(atoi(rest.c_str())) << 20, 'x');
    sleep(100);
    result.mutable_program()->set_text(memory.data(), 1);
  }
  if (verb == "nonsense") result.set_job(result.job() + 1);
}

int Serve(int fd) {
  while (true) {
    absl::StatusOr<std::string> frame = ReadFrame(fd);
    CompileJob job;
    if (!frame.ok() || !job.ParseFromString(*frame)) return 0;
    CompileResult started;
    started.set_job(job.job());
    started.set_started(absl::StrCat("jit_", job.program().substr(0, job.program().find(' '))));
    if (!WriteFrame(fd, started).ok()) return 0;
    CompileResult result;
    result.set_job(job.job());
    Obey(job, result);
    if (!WriteFrame(fd, result).ok()) return 0;
  }
}

}  // namespace
}  // namespace parkway::compiler

int main(int argc, char** argv) { return parkway::compiler::Serve(atoi(argv[argc - 1] + strlen("--fd="))); }
