// Array bytes travel apart from operations. Whoever has bytes offers them under a random 64-bit id; whoever wants them
// pulls: on the same machine by mapping the owner's shared memory (no copy), else over TCP in chunks of
// limits::kBulkChunkBytes into a block of shared memory of its own. Knowing an id is the permission to read it. An id
// may be promised before its bytes exist: pulls wait for them, at most limits::kTransferWait.
//
// All methods may be called from any thread; callbacks run on the bulk server's own thread, so that copying never
// delays a link (or inline for what is at hand), and must not block.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "base/bytes.h"
#include "base/limits.h"
#include "proto/parkway/engine.pb.h"

namespace parkway::fabric {

class Fabric;

struct BulkOptions {
  absl::Duration wait = limits::kTransferWait;  // for bytes that were promised
  absl::Duration stall = limits::kBulkStall;    // a transfer that brings no byte for so long fails
};

class Bulk {
 public:
  // Listens on `host` ("10.0.0.2") or "host:port"; without a port, or with port 0, one is picked. Peers connect to this
  // host: it is no wildcard. `fabric` outlives the result.
  static absl::StatusOr<std::unique_ptr<Bulk>> Create(Fabric& fabric, const std::string& host,
                                                      BulkOptions options = {});
  virtual ~Bulk() = default;

  virtual std::string endpoint() const = 0;

  // A new transfer of these bytes, held until Drop.
  virtual Transfer Offer(Bytes bytes) = 0;
  // Bytes for an id that somebody else chose and has already handed out (an Export): pulls that came early are
  // answered.
  virtual void Fulfil(uint64_t id, Bytes bytes) = 0;
  virtual void Fail(uint64_t id, absl::Status why) = 0;
  virtual void Drop(uint64_t id) = 0;

  // Pulls `transfer`. UNAVAILABLE when its owner can't be reached, ABORTED when it gave up, stalled, or has another
  // number of bytes than the transfer says. Destruction of this object ends it with CANCELLED.
  using Done = absl::AnyInvocable<void(absl::StatusOr<Bytes>)>;
  virtual void Fetch(const Transfer& transfer, Done done) = 0;
};

}  // namespace parkway::fabric
