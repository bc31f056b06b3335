// Host memory that outlives engines. A worker's arena has blocks of anonymous shared memory, one for each shard of an
// array of a host memory kind. An engine asks for a block, writes it and has it sealed; from then on nobody can write
// to it, and it stays when the engine dies: the next engine of the same lease takes it over. A block goes when the
// engine says that nothing uses it any more, with its lease, and, as long as it isn't sealed, with the engine that was
// writing. Each session has a quota for them. Beyond it, an engine that is about to be started again keeps copies of
// device memory here (ArenaBlock.kept), which go when the next engine has taken them.
//
// One engine at a time, each on a socket of its own (proto/parkway/arena.proto) that a thread of the arena serves.
// What an engine sends is checked; nonsense ends the connection. Any thread may call.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <thread>

#include "absl/status/statusor.h"
#include "base/descriptors.h"

namespace parkway {
class ArenaBlock;
class ArenaReply;
class ArenaRequest;
}  // namespace parkway

namespace parkway::worker {

class Arena {
 public:
  struct Stats {
    size_t blocks = 0;
    int64_t bytes = 0;
  };

  // `session_bytes`: what the blocks of one session may take together.
  explicit Arena(int64_t session_bytes) : session_bytes_(session_bytes) {}
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  // The end of a socket for an engine of that lease to be started with. The engine before it, which has ended, is let
  // go of, and so are the blocks of other leases.
  absl::StatusOr<Descriptor> Serve(uint64_t lease);
  // Its engine has ended and no other will come for the lease: frees everything.
  void Clear();

  Stats stats() const;

 private:
  struct Block;
  using BlockRef = std::shared_ptr<Block>;
  struct Session {
    int64_t bytes = 0;
    int blocks = 0;
  };

  void EndConnection();
  void Run(int socket);
  // False: the connection is of no use any more.
  bool Handle(int socket, const ArenaRequest& request);
  absl::StatusOr<BlockRef> Allocate(const ArenaBlock& wanted);
  absl::Status CheckRoom(const ArenaBlock& wanted) const;
  absl::Status Seal(uint64_t id);
  std::vector<BlockRef> SealedAfter(uint64_t id) const;
  void Release(uint64_t id);
  void ReleaseUnsealed();
  void ReleaseLocked(std::map<uint64_t, BlockRef>::iterator it);

  const int64_t session_bytes_;
  uint64_t lease_ = 0;  // of the caller of Serve and Clear, which is one thread at a time
  Descriptor socket_;
  std::thread thread_;

  mutable std::mutex mutex_;
  uint64_t next_id_ = 1;
  int64_t bytes_ = 0;
  std::map<uint64_t, BlockRef> blocks_;
  std::map<uint64_t, Session> sessions_;
};

}  // namespace parkway::worker
