// The proxy's compilers. Compiling runs code that may hang, crash or eat memory on a client's program, so each program
// is compiled in one of a few processes that can be killed: a program over its limits, or that crashes XLA, is an error
// for those who asked for it and for nobody else. Equal programs that are asked for at the same time are compiled once;
// results are kept for a repeat.
//
// Some processes are always there, warm. More start while slow compiles hold the others up, and go when nothing waits.
// A session's programs never take the last process, so that its endless ones can't stop the others'.
//
// Any thread may call. Callbacks come exactly once for each job, one at a time, on a thread of the pool, never from
// inside Compile or Cancel, and must not block.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/limits.h"
#include "engine/compiler/program_cache.h"

namespace parkway::compiler {

class CompilerPool {
 public:
  struct Options {
    std::vector<std::string> argv = {"/proc/self/exe", "compiler"};  // --fd=N is appended
    std::vector<std::pair<std::string, std::string>> env;            // added to this process's
    int processes = limits::kCompilers;                              // always there
    int max_processes = limits::kMaxCompilers;
    int queue = limits::kCompileQueue;
    int64_t queue_bytes = limits::kCompileQueueBytes;
    int64_t cache_bytes = limits::kCompileCacheBytes;
    int64_t memory_bytes = limits::kCompileMemoryBytes;  // of one process
    absl::Duration timeout = limits::kCompileTimeout;    // of one program
    absl::Duration slow = limits::kSlowCompile;          // a compile this old makes the pool grow when others wait
  };
  using JobId = uint64_t;
  using Callback = absl::AnyInvocable<void(absl::StatusOr<ProgramRef>)>;

  struct Stats {
    int64_t compiled = 0;  // by a process, errors of XLA's included
    int64_t shared = 0;    // joined a compile that another job had asked for
    int64_t cached = 0;    // answered from memory
    int64_t killed = 0;    // processes, for time, memory or cancellation
    int64_t crashed = 0;   // processes, by themselves
    int processes = 0;
    int waiting = 0;
    int running = 0;
  };

  // Starts the processes at once; one that can't be started is tried again at each job, whose error says why.
  explicit CompilerPool(Options options);
  // Jobs that have no answer yet get CANCELLED. Kills the processes.
  ~CompilerPool();
  CompilerPool(const CompilerPool&) = delete;
  CompilerPool& operator=(const CompilerPool&) = delete;

  // Compiles `job` (its number is the pool's to choose) for `session`. Errors, besides XLA's and the compiler's own:
  // RESOURCE_EXHAUSTED: over the limit of time or memory, or too many programs wait; FAILED_PRECONDITION: the program
  // crashed its compiler; CANCELLED; UNAVAILABLE: no compiler can be started.
  JobId Compile(uint64_t session, CompileJob job, Callback done);
  // The job's callback gets CANCELLED unless it has been answered; a process that works for no other job is killed.
  void Cancel(JobId job);
  Stats stats() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace parkway::compiler
