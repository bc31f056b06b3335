// Messages over a stream socket between a proxy and its compilers: 4 bytes of length, little-endian, then the message.
// Both calls block; one thread at each end.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace google::protobuf {
class MessageLite;
}

namespace parkway::compiler {

// RESOURCE_EXHAUSTED, and nothing was written, when the message is over limits::kMaxFrameBytes; UNAVAILABLE when the
// other end is gone.
absl::Status WriteFrame(int fd, const google::protobuf::MessageLite& message);

// The next message's bytes. UNAVAILABLE at the end of the stream, INVALID_ARGUMENT for a length over the limit.
absl::StatusOr<std::string> ReadFrame(int fd);

}  // namespace parkway::compiler
