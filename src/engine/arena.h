// Where an engine keeps the arrays of host memory kinds, so that they outlive it: blocks of shared memory that its
// worker owns (worker/arena.h). Whoever holds the Bytes of a block keeps it; when the last of them go, so does the
// block. Any thread may call.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "base/bytes.h"
#include "base/descriptors.h"
#include "engine/engine.h"

namespace parkway::engine {

// Which shard lies in a block.
struct ArenaShard {
  uint64_t session = 0;
  uint64_t array = 0;
  int device = 0;  // lease device id
  std::string memory_kind;
  Type type;
  bool kept = false;  // a copy of device memory for the next engine, beyond the session's quota
};

class Arena {
 public:
  virtual ~Arena() = default;
  // A block that `write` has filled, sealed since. RESOURCE_EXHAUSTED naming the session and the bytes when it has no
  // room; UNAVAILABLE when the worker does not answer. Blocks: not for a thread that others wait for.
  virtual absl::StatusOr<Bytes> Store(const ArenaShard& shard, size_t size,
                                      absl::FunctionRef<void(uint8_t* to)> write) = 0;
  // What an earlier engine of the same lease left, once. What the caller drops is freed.
  virtual absl::StatusOr<std::vector<std::pair<ArenaShard, Bytes>>> TakeOver() = 0;
};

// Over the socket that a worker starts its engines with.
std::unique_ptr<Arena> ConnectArena(Descriptor socket);

}  // namespace parkway::engine
