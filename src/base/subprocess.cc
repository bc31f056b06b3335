#include "base/subprocess.h"

#include <fcntl.h>
#include <glog/logging.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <cstdlib>
#include <future>
#include <mutex>
#include <thread>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace parkway {

struct Subprocess::Child {
  int pid = -1;
  int pidfd = -1;
  bool die_with_parent = true;
  absl::AnyInvocable<void(ExitStatus)> exited;

  std::mutex mutex;
  std::condition_variable ended;
  std::optional<ExitStatus> status;  // once reaped; from then on the pid may be another process's
};

namespace {

using Child = Subprocess::Child;

absl::StatusOr<std::string> FindProgram(const std::string& name) {
  if (name.find('/') != std::string::npos) return name;
  const char* path = std::getenv("PATH");
  for (const absl::string_view dir : absl::StrSplit(path ? path : "/usr/bin:/bin", ':')) {
    std::string candidate = absl::StrCat(dir, "/", name);
    if (access(candidate.c_str(), X_OK) == 0) return candidate;
  }
  return absl::UnavailableError(absl::StrCat("can't start ", name, ": no such program in PATH"));
}

std::vector<std::string> MakeEnvironment(const std::vector<std::pair<std::string, std::string>>& additions) {
  absl::flat_hash_set<std::string_view> replaced;
  std::vector<std::string> env;
  for (const auto& [key, value] : additions) {
    replaced.insert(key);
    env.push_back(absl::StrCat(key, "=", value));
  }
  for (char** entry = environ; *entry; ++entry) {
    const std::string_view text(*entry);
    if (!replaced.contains(text.substr(0, text.find('=')))) env.emplace_back(text);
  }
  return env;
}

std::vector<char*> Pointers(std::vector<std::string>& strings) {
  std::vector<char*> pointers;
  for (std::string& s : strings) pointers.push_back(s.data());
  pointers.push_back(nullptr);
  return pointers;
}

// All that the child needs, made before the fork: after it no memory may be allocated and no lock taken.
struct Image {
  const char* path;
  char* const* argv;
  char* const* envp;
  const std::pair<int, int>* fds;  // the sources lie above every target
  size_t fd_count;
  int parent;
  bool die_with_parent;
  int error_fd;
};

// Runs in the child; calls only what is safe after a fork of a process with many threads.
[[noreturn]] void RunChild(const Image& image) {
  setpgid(0, 0);
  if (image.die_with_parent) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != image.parent) _exit(127);  // it died in between
  }
  struct sigaction action {};
  action.sa_handler = SIG_DFL;
  for (int signal = 1; signal < NSIG; ++signal) sigaction(signal, &action, nullptr);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);

  syscall(SYS_close_range, 3u, ~0u, 4u /* CLOSE_RANGE_CLOEXEC */);
  bool ok = true;
  for (size_t i = 0; i < image.fd_count; ++i) ok = ok && dup2(image.fds[i].first, image.fds[i].second) >= 0;
  if (ok) execve(image.path, image.argv, image.envp);
  const int error = errno;
  [[maybe_unused]] ssize_t written = write(image.error_fd, &error, sizeof(error));
  _exit(127);
}

// The thread that starts and reaps. It is never joined: it lives as long as the process does.
class Keeper {
 public:
  static Keeper& Get() {
    static Keeper* keeper = new Keeper;
    return *keeper;
  }

  absl::StatusOr<std::shared_ptr<Child>> Start(const Image& image, absl::AnyInvocable<void(ExitStatus)> exited) {
    std::promise<absl::StatusOr<std::shared_ptr<Child>>> promise;
    auto future = promise.get_future();
    {
      std::lock_guard lock(mutex_);
      requests_.push_back([&] { promise.set_value(Fork(image, std::move(exited))); });
    }
    const uint64_t one = 1;
    PCHECK(write(wake_, &one, sizeof(one)) == sizeof(one));
    return future.get();
  }

 private:
  Keeper() : wake_(eventfd(0, EFD_CLOEXEC)) {
    PCHECK(wake_ >= 0) << "eventfd";
    std::thread([this] { Run(); }).detach();
  }

  void Run() {
    for (;;) {
      std::vector<pollfd> polled = {{wake_, POLLIN, 0}};
      for (const auto& child : children_) polled.push_back({child->pidfd, POLLIN, 0});
      if (poll(polled.data(), polled.size(), -1) < 0) continue;
      const std::vector<std::shared_ptr<Child>> watched = children_;
      for (size_t i = 0; i < watched.size(); ++i) {
        if (polled[i + 1].revents != 0) Reap(watched[i]);
      }
      if (polled[0].revents != 0) RunRequests();
    }
  }

  void RunRequests() {
    uint64_t count;
    if (read(wake_, &count, sizeof(count)) < 0) return;
    std::vector<absl::AnyInvocable<void()>> requests;
    {
      std::lock_guard lock(mutex_);
      requests.swap(requests_);
    }
    for (auto& request : requests) request();
  }

  absl::StatusOr<std::shared_ptr<Child>> Fork(Image image, absl::AnyInvocable<void(ExitStatus)> exited) {
    int pipe_fds[2];
    if (pipe2(pipe_fds, O_CLOEXEC) != 0) return absl::UnavailableError(absl::ErrnoToStatus(errno, "pipe").message());
    // The child's copy must not lie where one of its own descriptors goes.
    int lowest = 3;
    for (size_t i = 0; i < image.fd_count; ++i) lowest = std::max(lowest, image.fds[i].second + 1);
    image.error_fd = fcntl(pipe_fds[1], F_DUPFD_CLOEXEC, lowest);
    close(pipe_fds[1]);

    const int pid = fork();
    if (pid == 0) RunChild(image);
    const int fork_error = errno;
    close(image.error_fd);
    int error = 0;
    const bool failed = pid > 0 && read(pipe_fds[0], &error, sizeof(error)) == sizeof(error);
    close(pipe_fds[0]);
    if (pid < 0 || failed) {
      if (failed) waitpid(pid, nullptr, 0);
      return absl::UnavailableError(
          absl::ErrnoToStatus(failed ? error : fork_error, absl::StrCat("can't start ", image.path)).message());
    }
    const int pidfd = static_cast<int>(syscall(SYS_pidfd_open, pid, 0));
    if (pidfd < 0) {  // no descriptor is left: nobody would hear of its end
      const int pidfd_error = errno;
      kill(pid, SIGKILL);
      waitpid(pid, nullptr, 0);
      return absl::UnavailableError(
          absl::ErrnoToStatus(pidfd_error, absl::StrCat("can't watch ", image.path)).message());
    }
    auto child = std::make_shared<Child>();
    child->pid = pid;
    child->pidfd = pidfd;
    fcntl(child->pidfd, F_SETFD, FD_CLOEXEC);
    child->die_with_parent = image.die_with_parent;
    child->exited = std::move(exited);
    children_.push_back(child);
    return child;
  }

  void Reap(const std::shared_ptr<Child>& child) {
    int raw = 0;
    ExitStatus status;
    {
      std::lock_guard lock(child->mutex);  // so that nobody signals the pid once it is free
      const int got = waitpid(child->pid, &raw, WNOHANG);
      if (got == 0) return;
      if (got == child->pid && WIFEXITED(raw)) status.code = WEXITSTATUS(raw);
      if (got == child->pid && WIFSIGNALED(raw)) status.signal = WTERMSIG(raw);
      if (got < 0) status.code = -1;  // somebody else reaped it
      child->status = status;
    }
    close(child->pidfd);
    children_.erase(std::find(children_.begin(), children_.end(), child));
    child->ended.notify_all();
    if (child->exited) child->exited(status);
    child->exited = nullptr;
  }

  const int wake_;
  std::mutex mutex_;
  std::vector<absl::AnyInvocable<void()>> requests_;
  std::vector<std::shared_ptr<Child>> children_;  // this thread's own
};

}  // namespace

std::string ExitStatus::words() const {
  if (signal != 0) return absl::StrCat("killed by signal ", signal);
  return absl::StrCat("exited with ", code);
}

absl::StatusOr<std::unique_ptr<Subprocess>> Subprocess::Start(Options options,
                                                              absl::AnyInvocable<void(ExitStatus)> exited) {
  if (options.argv.empty()) return absl::InvalidArgumentError("can't start a program without a name");
  auto path = FindProgram(options.argv[0]);
  if (!path.ok()) return path.status();
  std::vector<std::string> env = MakeEnvironment(options.env);
  std::vector<char*> envp = Pointers(env);
  std::vector<char*> argv = Pointers(options.argv);

  // Copies above every target, so that no dup2 overwrites a source of a later one.
  int lowest = 3;
  for (const auto& [ours, theirs] : options.fds) lowest = std::max(lowest, theirs + 1);
  std::vector<std::pair<int, int>> fds;
  absl::Status copied;
  for (const auto& [ours, theirs] : options.fds) {
    const int copy = fcntl(ours, F_DUPFD_CLOEXEC, lowest);
    if (copy < 0) {
      copied = absl::InvalidArgumentError(
          absl::ErrnoToStatus(errno, absl::StrCat("can't hand descriptor ", ours, " to ", options.argv[0])).message());
      break;
    }
    fds.emplace_back(copy, theirs);
  }
  absl::StatusOr<std::shared_ptr<Child>> child(nullptr);
  if (copied.ok()) {
    const Image image{path->c_str(),           argv.data(), envp.data(), fds.data(), fds.size(), getpid(),
                      options.die_with_parent, -1};
    child = Keeper::Get().Start(image, std::move(exited));
  } else {
    child = copied;
  }
  for (const auto& [copy, theirs] : fds) close(copy);
  if (!child.ok()) return child.status();
  return std::unique_ptr<Subprocess>(new Subprocess(*std::move(child)));
}

Subprocess::~Subprocess() {
  if (child_->die_with_parent) Kill(SIGKILL);
}

int Subprocess::pid() const { return child_->pid; }

void Subprocess::Kill(int signal) {
  std::lock_guard lock(child_->mutex);
  if (!child_->status) kill(-child_->pid, signal);
}

std::optional<ExitStatus> Subprocess::Wait(absl::Duration at_most) {
  std::unique_lock lock(child_->mutex);
  const auto limit = absl::ToChronoNanoseconds(std::min(at_most, absl::Hours(24 * 365)));
  child_->ended.wait_for(lock, limit, [&] { return child_->status.has_value(); });
  return child_->status;
}

}  // namespace parkway
