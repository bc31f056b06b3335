// Where an engine's host runs what must not hold up its reader: launch threads, one for each context, and a pool for
// copies and loads. Behind an interface, so that a test runs a whole cluster in one thread.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "base/executor.h"

namespace parkway::engine {

// Runs tasks later, never inside Post, in the order of posting (as far as it has one thread). Destruction drops what
// has not begun and waits for what has, unless it happens inside a task. Post may be called from any thread.
class Runner {
 public:
  virtual ~Runner() = default;
  virtual void Post(Task task) = 0;
};

// Threads are started when there is work for them.
std::unique_ptr<Runner> MakeThreadRunner(const std::string& name, int threads);
// Tasks of a simulated clock's one thread; `executor` outlives the runner.
std::unique_ptr<Runner> MakeSimRunner(SimExecutor& executor);

struct HostThreads {
  std::function<std::unique_ptr<Runner>(const std::string& name)> make_launcher;  // one thread each
  Runner* pool = nullptr;                                                         // outlives the host; may be shared
  Executor* clock = nullptr;                                                      // outlives the host; may be shared
};

// Real threads for the hosts of one process.
class ProcessThreads {
 public:
  ProcessThreads();
  HostThreads threads();

 private:
  std::unique_ptr<Executor> clock_;
  std::unique_ptr<Runner> pool_;
};
// Everything in one thread, as tasks of `executor`; `pool` is one of its runners. Both outlive the host.
HostThreads SimThreads(SimExecutor& executor, Runner& pool);

}  // namespace parkway::engine
