// One engine as a child process of its worker. It says on its ready pipe, in one line of JSON, where it listens:
//   {"incarnation": 123, "address": "10.0.0.2:41321", "unix_path": "/run/x", "machine": "...", "pid": 7}
// and signs of life to its liveness pipe (base/liveness.h). An engine that once gave one and then is silent for
// limits::kHeartbeatTimeout is frozen, and killed. Its end is told once, with the cause in words.
//
// Everything, also destruction, happens in tasks of one executor; so do the events.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/descriptors.h"
#include "base/executor.h"

namespace parkway {
class EngineEndpoint;
}

namespace parkway::worker {

// An engine of a worker; tests have another implementation.
class EngineProcess {
 public:
  struct Command {
    std::vector<std::string> argv;  // --ready_fd is added
    std::vector<std::pair<std::string, std::string>> env;
    Descriptor arena;  // the engine's end of a socket to the worker's arena (worker/arena.h): --arena_fd is added
  };
  struct Events {
    std::function<void(const EngineEndpoint& endpoint)> on_ready;
    std::function<void(const absl::Status& cause)> on_exit;  // last, once
  };

  virtual ~EngineProcess() = default;  // kills it
  virtual int pid() const = 0;
  // Asks it to end, and kills it after limits::kEngineStopGrace. `why` is its cause.
  virtual void Stop(const absl::Status& why) = 0;
  // Kills it now.
  virtual void Kill(const absl::Status& why) = 0;
};

// UNAVAILABLE when the program can't be started; no event comes then.
absl::StatusOr<std::unique_ptr<EngineProcess>> StartEngineProcess(Executor* executor, EngineProcess::Command command,
                                                                  EngineProcess::Events events);

}  // namespace parkway::worker
