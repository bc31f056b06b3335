// Cuts a stream of bytes into messages. The stream begins with kLinkPreface, by which each side knows the other for a
// Parkway process of its own version; then each message comes after 4 bytes of length (little-endian). Memory grows
// with the bytes that have come, never with a length that was only announced. One thread.
#pragma once

#include <cstddef>
#include <optional>
#include <string_view>

#include "absl/status/statusor.h"

namespace parkway::fabric {

inline constexpr size_t kFrameHeaderBytes = 4;
inline constexpr std::string_view kLinkPreface = "PKL1";

class FrameReader {
 public:
  FrameReader() = default;
  ~FrameReader();
  FrameReader(const FrameReader&) = delete;

  struct Space {
    char* data;
    size_t size;
  };
  // Where the next bytes go; no data when memory has run out. Invalidates views.
  Space Prepare();
  void Commit(size_t bytes) { end_ += bytes; }

  // The next whole message, nullopt when it has not come whole, INVALID_ARGUMENT for another preface or a length that
  // can't be. The view is good until Prepare.
  absl::StatusOr<std::optional<std::string_view>> Next();

  bool holds_part() const { return begin_ != end_; }
  size_t capacity() const { return capacity_; }

 private:
  size_t PendingBytes() const;  // header included; 0 when not even the header has come
  bool Reallocate(size_t capacity);

  char* buffer_ = nullptr;
  size_t capacity_ = 0;
  size_t begin_ = 0;
  size_t end_ = 0;
  bool preface_seen_ = false;
};

}  // namespace parkway::fabric
