// An engine without arithmetic, for scale and fault tests behind the real host: arrays have types and a fingerprint,
// programs take time, everything can fail on demand. Any bytes are a program. A shard that was put has its bytes; the
// output of a launch has a hash of (program, output, device, arguments) in its first 8 bytes, and zeros.
//
// Engines of one SimWorld meet in collectives: launch number n in a shared context runs when every member has brought
// its n-th launch there; members that bring different programs all fail, and the world counts it. Without a world,
// launches of a shared context end locally.
//
// Time is the executor's. All state is touched only inside its tasks, so that one SimExecutor makes a whole cluster
// deterministic; methods may be called from any thread. Engines of a world use the same executor, which outlives them.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/executor.h"
#include "engine/engine.h"
#include "engine/sim/sim_world.h"

namespace parkway::engine {

struct SimOptions {
  int devices = 1;
  std::string platform = "cpu";
  std::vector<std::string> memory_kinds = {"device", "pinned_host", "unpinned_host"};
  absl::Duration launch_time;  // of programs without a time of their own
  absl::Duration put_time;
  absl::Duration open_time;       // of a context
  bool launch_may_block = false;  // what the capabilities say
};

class SimEngine : public Engine {
 public:
  // Null world: no other engines.
  static std::unique_ptr<SimEngine> Create(SimOptions options, Executor& executor,
                                           std::shared_ptr<SimWorld> world = nullptr);

  // ---- What the next steps do. Any thread.
  virtual void SetLaunchTime(const std::string& program, absl::Duration time) = 0;
  virtual void FailNextLaunch(absl::Status how) = 0;    // fails when it has run
  virtual void RefuseNextLaunch(absl::Status how) = 0;  // Launch returns the error
  virtual void HangNextLaunch() = 0;                    // ends only with its context, with the cause of that
  virtual void FailNextLoad(absl::Status how) = 0;
  virtual void FailNextPut(absl::Status how) = 0;
  virtual void FailNextOpen(absl::Status how) = 0;
  // Nothing completes until Thaw; then everything that was due does.
  virtual void Freeze() = 0;
  virtual void Thaw() = 0;
  // Nothing completes any more, and its peers' collectives fail as Gloo's do.
  virtual void Crash() = 0;

  struct Counts {
    int launches = 0, live_arrays = 0, live_executables = 0, open_contexts = 0, keys = 0;
  };
  virtual Counts counts() const = 0;
};

// What stands for the contents of a shard: a hash of its size and its first 64 bytes, the same for every copy of it.
uint64_t SimFingerprint(const Bytes& bytes);
// The first 8 bytes of an output; `device` is a lease device id, `arguments` the fingerprints of that device's shards.
uint64_t SimOutput(const std::string& program, int output, int device, absl::Span<const uint64_t> arguments);

}  // namespace parkway::engine
