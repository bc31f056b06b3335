#include "engine/compiler/process.h"

#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <fstream>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/status.h"
#include "engine/compiler/frame.h"
#include "proto/parkway/compiler.pb.h"

namespace parkway::compiler {
namespace {

constexpr int kChildFd = 3;
constexpr absl::Duration kEndWait = absl::Seconds(5);  // between a closed socket and the child's end

}  // namespace

absl::StatusOr<std::unique_ptr<CompilerProcess>> CompilerProcess::Start(
    std::vector<std::string> argv, const std::vector<std::pair<std::string, std::string>>& env) {
  std::array<int, 2> ends;
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0) {
    return absl::ResourceExhaustedError("no socket is left for a compiler process; raise the limit of open files");
  }
  argv.push_back(absl::StrCat("--fd=", kChildFd));
  absl::StatusOr<std::unique_ptr<Subprocess>> child =
      Subprocess::Start({.argv = std::move(argv), .env = env, .fds = {{ends[1], kChildFd}}});
  close(ends[1]);
  if (!child.ok()) {
    close(ends[0]);
    return child.status();
  }
  return std::unique_ptr<CompilerProcess>(new CompilerProcess(*std::move(child), ends[0]));
}

CompilerProcess::CompilerProcess(std::unique_ptr<Subprocess> child, int fd) : child_(std::move(child)), fd_(fd) {}

CompilerProcess::~CompilerProcess() {
  child_.reset();
  close(fd_);
}

bool CompilerProcess::Alive() const {
  // Between jobs it has nothing to say: readable means closed, or broken.
  pollfd poll_fd{.fd = fd_, .events = POLLIN, .revents = 0};
  return poll(&poll_fd, 1, 0) == 0;
}

absl::StatusOr<CompileResult> CompilerProcess::Run(const CompileJob& job,
                                                   absl::FunctionRef<void(const std::string&)> started) {
  PARKWAY_RETURN_IF_ERROR(WriteFrame(fd_, job));
  while (true) {
    PARKWAY_ASSIGN_OR_RETURN(std::string frame, ReadFrame(fd_));
    CompileResult result;
    if (!result.ParseFromString(frame) || result.job() != job.job()) {
      return absl::InvalidArgumentError("what a compiler process sent is no answer to its job");
    }
    if (result.started().empty()) return result;
    started(result.started());
  }
}

void CompilerProcess::Kill() { child_->Kill(SIGKILL); }

int64_t CompilerProcess::MemoryBytes() const {
  std::ifstream statm(absl::StrCat("/proc/", child_->pid(), "/statm"));
  int64_t total = 0, resident = 0;
  statm >> total >> resident;
  return statm.good() ? resident * sysconf(_SC_PAGESIZE) : 0;
}

std::string CompilerProcess::EndInWords() {
  std::optional<ExitStatus> end = child_->Wait(kEndWait);
  return end.has_value() ? end->words() : "closed its connection";
}

}  // namespace parkway::compiler
