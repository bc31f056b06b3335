// Addresses and sockets, without an event loop. Addresses are "host:port", "[ipv6]:port" or "unix:/path"; messages name
// them as they were given.
#pragma once

#include <sys/socket.h>

#include <cstdint>
#include <string>
#include <utility>

#include "absl/status/statusor.h"

namespace parkway::fabric {

// A file descriptor, closed with this object.
class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) : fd_(fd) {}
  ~UniqueFd();
  UniqueFd(UniqueFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  int get() const { return fd_; }
  bool ok() const { return fd_ >= 0; }

 private:
  int fd_ = -1;
};

struct Address {
  std::string host;       // a name or a number; empty for a unix socket
  std::string port;       // digits
  std::string unix_path;  // set for a unix socket
};
absl::StatusOr<Address> ParseAddress(const std::string& address);

// One socket address that the kernel takes.
struct RawAddress {
  sockaddr_storage storage{};
  socklen_t size = 0;
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
};
absl::StatusOr<RawAddress> UnixAddress(const std::string& path);
// "10.0.0.2:41321", "[::1]:41321"; "unix" for a unix socket without a name.
std::string ToText(const RawAddress& address);

struct ListeningSocket {
  UniqueFd fd;
  std::string address;  // as given, with the port that was picked
  std::string unix_path;
  uint64_t unix_inode = 0;  // of the socket file, so that only our own is removed
};
// FAILED_PRECONDITION when the address is taken by a living process. A stale socket file is replaced; ours has mode
// 0600.
absl::StatusOr<ListeningSocket> ListenOn(const std::string& address);

// Sends small messages at once (no Nagle); nothing on a unix socket.
void SetNoDelay(int fd);

// "connection reset by peer" of errno `error`, after "`what`: ".
std::string WithErrno(const std::string& what, int error);

}  // namespace parkway::fabric
