// The core's state has one owner and no locks: everything that touches it is a task of one Executor. A task runs on the
// thread that brings it when no other task is running, so a request that finds the core idle costs no change of thread;
// otherwise the running thread takes it next. Order of arrival is order of execution. A task never blocks.
//
// Post, After and Cancel may be called from any thread, also from inside a task (the new task then runs after it).
#pragma once

#include <cstdint>
#include <memory>

#include "absl/functional/any_invocable.h"
#include "absl/time/time.h"

namespace parkway {

using Task = absl::AnyInvocable<void()>;
using TimerId = uint64_t;

class Executor {
 public:
  virtual ~Executor() = default;
  virtual void Post(Task task) = 0;
  // Runs `task` once, not before `delay` has passed.
  virtual TimerId After(absl::Duration delay, Task task) = 0;
  // A timer that has fired or was cancelled is ignored.
  virtual void Cancel(TimerId timer) = 0;
  virtual absl::Time Now() const = 0;
};

// Real clock, one timer thread. Destruction waits for a running task and drops what is queued.
std::unique_ptr<Executor> MakeSerialExecutor();

// Simulated clock for tests: nothing runs until the test says so, and time moves only by Advance. One thread.
class SimExecutor : public Executor {
 public:
  SimExecutor();
  ~SimExecutor() override;
  void Post(Task task) override;
  TimerId After(absl::Duration delay, Task task) override;
  void Cancel(TimerId timer) override;
  absl::Time Now() const override;
  // Runs queued tasks, and those that they post, until none is left. Returns how many ran.
  int RunUntilIdle();
  // Moves the clock forward, running timers at their times and everything that they post.
  void Advance(absl::Duration by);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace parkway
