#include "engine/compiler/frame.h"

#include <errno.h>
#include <google/protobuf/message_lite.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>

#include "absl/strings/str_cat.h"
#include "base/limits.h"
#include "base/status.h"

namespace parkway::compiler {
namespace {

constexpr size_t kLengthBytes = 4;

absl::Status WriteAll(int fd, const char* data, size_t size) {
  while (size > 0) {
    const ssize_t written = send(fd, data, size, MSG_NOSIGNAL);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return absl::UnavailableError(absl::StrCat("write to the other process: ", strerror(errno)));
    data += written;
    size -= static_cast<size_t>(written);
  }
  return absl::OkStatus();
}

absl::Status ReadAll(int fd, char* data, size_t size) {
  while (size > 0) {
    const ssize_t got = read(fd, data, size);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return absl::UnavailableError(absl::StrCat("read from the other process: ", strerror(errno)));
    if (got == 0) return absl::UnavailableError("the other process has closed the connection");
    data += got;
    size -= static_cast<size_t>(got);
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status WriteFrame(int fd, const google::protobuf::MessageLite& message) {
  const size_t size = message.ByteSizeLong();
  if (size > limits::kMaxFrameBytes) {
    return absl::ResourceExhaustedError(
        absl::StrCat("a message of ", size, " bytes is over the limit of ", limits::kMaxFrameBytes));
  }
  std::string frame(kLengthBytes, '\0');
  for (size_t i = 0; i < kLengthBytes; ++i) frame[i] = static_cast<char>(size >> (8 * i));
  message.AppendToString(&frame);
  return WriteAll(fd, frame.data(), frame.size());
}

absl::StatusOr<std::string> ReadFrame(int fd) {
  std::array<char, kLengthBytes> length;
  PARKWAY_RETURN_IF_ERROR(ReadAll(fd, length.data(), length.size()));
  size_t size = 0;
  for (size_t i = 0; i < kLengthBytes; ++i) size |= size_t{static_cast<uint8_t>(length[i])} << (8 * i);
  if (size > limits::kMaxFrameBytes) {
    return absl::InvalidArgumentError(absl::StrCat("a message announces ", size, " bytes"));
  }
  // Grows with what comes, so that a lying length costs nothing.
  std::string message;
  while (message.size() < size) {
    const size_t have = message.size();
    message.resize(have + std::min(size - have, size_t{16} << 20));
    PARKWAY_RETURN_IF_ERROR(ReadAll(fd, message.data() + have, message.size() - have));
  }
  return message;
}

}  // namespace parkway::compiler
