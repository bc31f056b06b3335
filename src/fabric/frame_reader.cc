#include "fabric/frame_reader.h"

#include <endian.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/limits.h"

namespace parkway::fabric {
namespace {

constexpr size_t kInitialBytes = 16 << 10;
constexpr size_t kKeptBytes = 1 << 20;  // a buffer that grew beyond is given back when it is empty

}  // namespace

FrameReader::~FrameReader() { std::free(buffer_); }

bool FrameReader::Reallocate(size_t capacity) {
  char* buffer = static_cast<char*>(std::realloc(buffer_, capacity));
  if (buffer == nullptr) return false;
  buffer_ = buffer;
  capacity_ = capacity;
  return true;
}

size_t FrameReader::PendingBytes() const {
  if (!preface_seen_ || end_ - begin_ < kFrameHeaderBytes) return 0;
  uint32_t length;
  std::memcpy(&length, buffer_ + begin_, sizeof(length));
  return kFrameHeaderBytes + le32toh(length);
}

FrameReader::Space FrameReader::Prepare() {
  if (begin_ == end_) {
    begin_ = end_ = 0;
    if ((capacity_ == 0 || capacity_ > kKeptBytes) && !Reallocate(kInitialBytes)) return {nullptr, 0};
  }
  const size_t whole = std::max(PendingBytes(), kFrameHeaderBytes);
  if (begin_ > 0 && begin_ + whole > capacity_) {
    std::memmove(buffer_, buffer_ + begin_, end_ - begin_);
    end_ -= begin_;
    begin_ = 0;
  }
  if (end_ == capacity_ && !Reallocate(std::min(std::max(whole, kInitialBytes), 2 * capacity_))) return {nullptr, 0};
  return {buffer_ + end_, capacity_ - end_};
}

absl::StatusOr<std::optional<std::string_view>> FrameReader::Next() {
  if (!preface_seen_) {
    const size_t come = std::min(end_ - begin_, kLinkPreface.size());
    if (std::string_view(buffer_ + begin_, come) != kLinkPreface.substr(0, come)) {
      return absl::InvalidArgumentError("this is no Parkway process, or one of another version");
    }
    if (come < kLinkPreface.size()) return std::nullopt;
    preface_seen_ = true;
    begin_ += come;
  }
  const size_t whole = PendingBytes();
  if (whole == 0) return std::nullopt;
  if (whole == kFrameHeaderBytes || whole - kFrameHeaderBytes > limits::kMaxFrameBytes) {
    return absl::InvalidArgumentError(absl::StrCat("it announced a message of ", whole - kFrameHeaderBytes,
                                                   " bytes; a message has 1 to ", limits::kMaxFrameBytes));
  }
  if (end_ - begin_ < whole) return std::nullopt;
  const std::string_view message(buffer_ + begin_ + kFrameHeaderBytes, whole - kFrameHeaderBytes);
  begin_ += whole;
  return message;
}

}  // namespace parkway::fabric
