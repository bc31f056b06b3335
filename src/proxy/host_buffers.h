// The host buffers of one session: bytes that a client sends for arrays that it makes, and bytes of arrays that it
// reads. They travel beside the request stream, so a buffer may come before or after the request that names it; each is
// used once. Only who knows the session's random id gets here (HostBufferTable).
//
// Any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/bytes.h"
#include "runtime/pending_bytes.h"

namespace parkway::proxy {

class HostBuffers {
 public:
  HostBuffers() = default;
  HostBuffers(const HostBuffers&) = delete;

  // ---- From the client. Start says where the bytes of `handle` go: INVALID_ARGUMENT when it has been stored before or
  // the size makes no sense, RESOURCE_EXHAUSTED while too much waits that no request has named.
  absl::StatusOr<runtime::PendingBytesRef> Start(uint64_t handle, int64_t size, absl::Time now);
  // What the request that makes an array takes; an error for one taken before.
  runtime::PendingBytesRef Take(uint64_t handle, absl::Time now);

  // ---- To the client. Promise, then Offer once: the bytes, or why there are none.
  using Then = absl::AnyInvocable<void(const absl::StatusOr<Bytes>&)>;
  absl::Status Promise(uint64_t handle);
  absl::Status Offer(uint64_t handle, absl::StatusOr<Bytes> bytes);
  // Calls `then` as soon as the bytes are there: now, or on the thread that offers them. FAILED_PRECONDITION for a
  // handle that nothing was promised under, or that somebody waits for already.
  void Fetch(uint64_t handle, Then then);
  void Delete(uint64_t handle);
  // Promised, and not offered yet.
  int promised() const;

  // Fails what a request has taken before `limit` and no Store has begun to bring.
  void FailOverdue(absl::Time limit);
  // Fails everything that is pending and forgets the rest; all later calls get `why`.
  void Close(const absl::Status& why);

  int64_t bytes_held() const;

 private:
  struct Incoming {
    runtime::PendingBytesRef bytes;
    int64_t size = 0;
    absl::Time since;
    bool started = false;
    bool taken = false;
  };

  struct Outgoing {
    std::optional<absl::StatusOr<Bytes>> bytes;
    Then then;  // of who waits for them
  };

  mutable std::mutex mutex_;
  absl::Status closed_;
  absl::flat_hash_map<uint64_t, Incoming> incoming_;
  absl::flat_hash_map<uint64_t, Outgoing> outgoing_;
  int promised_ = 0;       // of `outgoing_`, without their bytes
  int64_t unclaimed_ = 0;  // bytes of `incoming_` that no request has taken
  int64_t offered_ = 0;    // bytes of `outgoing_`
};
using HostBuffersRef = std::shared_ptr<HostBuffers>;

// Sessions by id.
class HostBufferTable {
 public:
  // A new session under a new random id. Nothing, RESOURCE_EXHAUSTED, when there are limits::kMaxSessionsPerProxy.
  absl::StatusOr<std::pair<uint64_t, HostBuffersRef>> Open();
  // PERMISSION_DENIED for an id that is not a session's.
  absl::StatusOr<HostBuffersRef> Find(uint64_t session) const;
  void Close(uint64_t session, const absl::Status& why);
  void FailOverdue(absl::Time limit);

 private:
  mutable std::mutex mutex_;
  absl::flat_hash_map<uint64_t, HostBuffersRef> sessions_;
};

// The bytes of one Store, appended as they come: into shared memory for what goes to engines by reference, else into a
// string. The announced size takes no memory before bytes do. One thread.
class StoreWriter {
 public:
  explicit StoreWriter(int64_t size) : size_(size) {}
  // INVALID_ARGUMENT when more comes than was announced, RESOURCE_EXHAUSTED when there is no memory.
  absl::Status Append(const uint8_t* data, size_t size);
  // INVALID_ARGUMENT when less came than was announced.
  absl::StatusOr<Bytes> Finish();

 private:
  const int64_t size_;
  int64_t written_ = 0;
  std::string small_;
  std::shared_ptr<Blob> blob_;
};

}  // namespace parkway::proxy
