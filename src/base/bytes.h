// Array bytes move through Parkway without being copied at each door. `Bytes` is a read-only view and whatever keeps it
// alive: a heap string, a mapped shared-memory block, an engine's own buffer. Blob is a block of shared memory (a
// memfd, 64-byte aligned, gone with its last user, also after kill -9), which other processes of the same user on the
// same machine map by its local path. Both may be used by any thread.
//
// Fresh pages cost several times as much as the copy into them. So a process keeps the large blocks that it has done
// with (limits::kWarmBlockBytes) and writes on one of them once nobody else has it open. Nothing has to be told for
// that: the kernel knows (a write lease is granted on no file that others have open), also when they were killed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace parkway {

struct Bytes {
  const uint8_t* data = nullptr;
  size_t size = 0;
  std::shared_ptr<const void> owner;
  std::string local_path;  // Blob::Map opens the same bytes on this machine; empty when they can't be

  std::string_view view() const { return {reinterpret_cast<const char*>(data), size}; }
  Bytes Slice(size_t offset, size_t length) const;  // shares the owner; no local path
  static Bytes OfString(std::string bytes);
};

class Blob {
 public:
  // Zero-filled. RESOURCE_EXHAUSTED when the machine has no shared memory left for `size` bytes.
  static absl::StatusOr<std::shared_ptr<Blob>> Create(size_t size);
  // The same with any content, perhaps that of another session: the caller writes every byte before it shares the
  // block.
  static absl::StatusOr<std::shared_ptr<Blob>> CreateForOverwrite(size_t size);
  // Maps an existing block or file read-only; FAILED_PRECONDITION when it is gone, in use for other bytes by
  // now, or its size is not `size`. The result has a local path of this process's own, so that the bytes can be handed
  // on after their maker ended or the file was deleted.
  static absl::StatusOr<Bytes> Map(const std::string& local_path, size_t size);
  // The same of an open block, whose descriptor stays the caller's.
  static absl::StatusOr<Bytes> MapDescriptor(int fd, size_t size);
  ~Blob();
  Blob(const Blob&) = delete;
  Blob& operator=(const Blob&) = delete;

  uint8_t* data() { return data_; }
  size_t size() const { return size_; }
  // The whole block as Bytes; `self` keeps it.
  static Bytes Share(const std::shared_ptr<Blob>& self);

 private:
  friend class WarmBlocks;
  Blob(int fd, uint8_t* data, size_t size) : fd_(fd), data_(data), size_(size) {}
  int fd_;
  uint8_t* data_;
  size_t size_;
};

}  // namespace parkway
