// Datagrams with descriptors beside them, on a socket between two processes of one machine (SOCK_SEQPACKET). A message
// arrives whole or not at all. Any thread; messages of one direction keep their order.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace parkway {

// Owns a descriptor.
class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() { Reset(); }
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    if (this != &other) {
      Reset();
      fd_ = std::exchange(other.fd_, -1);
    }
    return *this;
  }
  int get() const { return fd_; }
  void Reset();

 private:
  int fd_ = -1;
};

// Two connected ends. RESOURCE_EXHAUSTED when there are no descriptors left.
absl::StatusOr<std::pair<Descriptor, Descriptor>> DatagramPair();

// UNAVAILABLE when the other end is gone, or, with `wait` false, when it has no room.
absl::Status SendDatagram(int socket, const std::string& message, absl::Span<const int> descriptors = {},
                          bool wait = true);

struct Datagram {
  std::string message;
  std::vector<Descriptor> descriptors;
};
// Blocks. UNAVAILABLE when the other end is gone; INVALID_ARGUMENT for a message of more than
// limits::kArenaMessageBytes.
absl::StatusOr<Datagram> ReceiveDatagram(int socket);

}  // namespace parkway
