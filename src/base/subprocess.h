// Child processes that can't outlive their purpose: each dies with its parent (also after kill -9 of it), leads a
// process group of its own, and its end is told once, in words. The kernel ties "dies with its parent" to the thread
// that started the child, so one thread that lives as long as the process starts, watches and reaps all of them.
//
// Any thread may call; `exited` runs on that thread and must not block nor throw.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace parkway {

struct ExitStatus {
  int code = 0;    // of exit(), when signal is 0
  int signal = 0;  // that killed it
  bool ok() const { return code == 0 && signal == 0; }
  std::string words() const;  // "exited with 3", "killed by signal 9"
};

class Subprocess {
 public:
  struct Options {
    std::vector<std::string> argv;                         // argv[0] is a path, or searched for in PATH
    std::vector<std::pair<std::string, std::string>> env;  // added to this process's environment, or replacing there
    std::vector<std::pair<int, int>> fds;                  // {ours, the child's number}; all others above 2 are closed
    bool die_with_parent = true;                           // false: outlives us, and its Subprocess object
  };

  // INVALID_ARGUMENT, or UNAVAILABLE naming the program, when it can't be started; `exited` is not called then.
  static absl::StatusOr<std::unique_ptr<Subprocess>> Start(Options options,
                                                           absl::AnyInvocable<void(ExitStatus)> exited = nullptr);

  // Kills the whole group unless it may outlive us. `exited` still comes.
  ~Subprocess();
  Subprocess(const Subprocess&) = delete;
  Subprocess& operator=(const Subprocess&) = delete;

  int pid() const;
  // Sends the signal to the child's process group; nothing when the child has ended.
  void Kill(int signal);
  // Blocks until it has ended; nullopt when that takes longer than `at_most`.
  std::optional<ExitStatus> Wait(absl::Duration at_most);

  struct Child;

 private:
  explicit Subprocess(std::shared_ptr<Child> child) : child_(std::move(child)) {}
  std::shared_ptr<Child> child_;
};

}  // namespace parkway
