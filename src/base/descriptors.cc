#include "base/descriptors.h"

#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/status/status.h"
#include "base/limits.h"

namespace parkway {
namespace {

constexpr size_t kMaxDescriptors = 253;  // the kernel's limit for one message

absl::Status Unavailable(const char* what) {
  return absl::UnavailableError(std::string(absl::ErrnoToStatus(errno, what).message()));
}

}  // namespace

void Descriptor::Reset() {
  if (fd_ >= 0) close(std::exchange(fd_, -1));
}

absl::StatusOr<std::pair<Descriptor, Descriptor>> DatagramPair() {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) {
    return absl::ResourceExhaustedError(std::string(absl::ErrnoToStatus(errno, "can't make a socket pair").message()));
  }
  return std::make_pair(Descriptor(ends[0]), Descriptor(ends[1]));
}

absl::Status SendDatagram(int socket, const std::string& message, absl::Span<const int> descriptors, bool wait) {
  iovec part{const_cast<char*>(message.data()), message.size()};
  msghdr header{};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  std::vector<char> control(descriptors.empty() ? 0 : CMSG_SPACE(descriptors.size() * sizeof(int)));
  if (!descriptors.empty()) {
    header.msg_control = control.data();
    header.msg_controllen = control.size();
    cmsghdr* rights = CMSG_FIRSTHDR(&header);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(descriptors.size() * sizeof(int));
    std::memcpy(CMSG_DATA(rights), descriptors.data(), descriptors.size() * sizeof(int));
  }
  while (sendmsg(socket, &header, MSG_NOSIGNAL | (wait ? 0 : MSG_DONTWAIT)) < 0) {
    if (errno != EINTR) return Unavailable("can't send a datagram");
  }
  return absl::OkStatus();
}

absl::StatusOr<Datagram> ReceiveDatagram(int socket) {
  Datagram datagram;
  datagram.message.resize(limits::kArenaMessageBytes);
  std::vector<char> control(CMSG_SPACE(kMaxDescriptors * sizeof(int)));
  iovec part{datagram.message.data(), datagram.message.size()};
  msghdr header{};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  header.msg_control = control.data();
  header.msg_controllen = control.size();
  ssize_t size;
  while ((size = recvmsg(socket, &header, MSG_CMSG_CLOEXEC)) < 0) {
    if (errno != EINTR) return Unavailable("can't receive a datagram");
  }
  for (cmsghdr* c = CMSG_FIRSTHDR(&header); c != nullptr; c = CMSG_NXTHDR(&header, c)) {
    if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int fd;
      std::memcpy(&fd, CMSG_DATA(c) + i * sizeof(int), sizeof(int));
      datagram.descriptors.emplace_back(fd);
    }
  }
  if (size == 0) return absl::UnavailableError("the other end is gone");
  if ((header.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) != 0) {
    return absl::InvalidArgumentError("a datagram that is too long, or has more descriptors than could be taken");
  }
  datagram.message.resize(static_cast<size_t>(size));
  return datagram;
}

}  // namespace parkway
