// Runs something as a task of an executor, and waits until it is done. Not from inside a task.
#pragma once

#include "absl/functional/function_ref.h"
#include "absl/synchronization/notification.h"
#include "base/executor.h"

namespace parkway {

inline void RunInTask(Executor& executor, absl::FunctionRef<void()> task) {
  absl::Notification done;
  executor.Post([&] {
    task();
    done.Notify();
  });
  done.WaitForNotification();
}

}  // namespace parkway
