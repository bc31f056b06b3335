#include "fabric/socket.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace parkway::fabric {
namespace {

constexpr char kUnixPrefix[] = "unix:";

absl::Status CantListen(const std::string& address, int error) {
  return absl::FailedPreconditionError(WithErrno(absl::StrCat("can't listen on ", address), error));
}

// True when a process still accepts connections on `raw`.
bool IsServed(const RawAddress& raw) {
  const UniqueFd probe(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  return connect(probe.get(), raw.get(), raw.size) == 0 || errno == EAGAIN;
}

absl::StatusOr<ListeningSocket> ListenOnUnix(const std::string& address, const std::string& path) {
  auto raw = UnixAddress(path);
  if (!raw.ok()) return raw.status();
  ListeningSocket result;
  result.fd = UniqueFd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  // Before bind, so that there is no moment at which another user could connect.
  if (!result.fd.ok() || fchmod(result.fd.get(), 0600) != 0) return CantListen(address, errno);
  int error = bind(result.fd.get(), raw->get(), raw->size) == 0 ? 0 : errno;
  struct stat st {};
  if (error == EADDRINUSE && lstat(path.c_str(), &st) == 0 && S_ISSOCK(st.st_mode) && !IsServed(*raw)) {
    unlink(path.c_str());
    error = bind(result.fd.get(), raw->get(), raw->size) == 0 ? 0 : errno;
  }
  if (error != 0) return CantListen(address, error);
  if (listen(result.fd.get(), SOMAXCONN) != 0 || lstat(path.c_str(), &st) != 0) return CantListen(address, errno);
  result.address = address;
  result.unix_path = path;
  result.unix_inode = st.st_ino;
  return result;
}

absl::StatusOr<ListeningSocket> ListenOnTcp(const std::string& address, const Address& parsed) {
  addrinfo hints{};
  hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (const int error = getaddrinfo(parsed.host.c_str(), parsed.port.c_str(), &hints, &found); error != 0) {
    return absl::FailedPreconditionError(absl::StrCat("can't listen on ", address, ": ", gai_strerror(error)));
  }
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owner(found, freeaddrinfo);
  ListeningSocket result;
  result.fd = UniqueFd(socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int on = 1;
  if (!result.fd.ok() || setsockopt(result.fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) != 0 ||
      bind(result.fd.get(), found->ai_addr, found->ai_addrlen) != 0 || listen(result.fd.get(), SOMAXCONN) != 0) {
    return CantListen(address, errno);
  }
  RawAddress local;
  local.size = sizeof(local.storage);
  if (getsockname(result.fd.get(), reinterpret_cast<sockaddr*>(&local.storage), &local.size) != 0) {
    return CantListen(address, errno);
  }
  const std::string text = ToText(local);
  result.address = absl::StrCat(address.substr(0, address.rfind(':')), text.substr(text.rfind(':')));
  return result;
}

}  // namespace

UniqueFd::~UniqueFd() {
  if (fd_ >= 0) close(fd_);
}

std::string WithErrno(const std::string& what, int error) {
  return std::string(absl::ErrnoToStatus(error, what).message());
}

absl::StatusOr<Address> ParseAddress(const std::string& address) {
  Address parsed;
  if (absl::StartsWith(address, kUnixPrefix)) {
    parsed.unix_path = address.substr(std::strlen(kUnixPrefix));
    if (!parsed.unix_path.empty()) return parsed;
  }
  const size_t colon = address.rfind(':');
  uint32_t port = 0;
  if (colon == std::string::npos || colon == 0 || !absl::SimpleAtoi(address.substr(colon + 1), &port) || port > 65535) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", address, "\" is no address: write host:port, [ipv6]:port or unix:/path"));
  }
  parsed.host = address.substr(0, colon);
  if (parsed.host.front() == '[' && parsed.host.back() == ']') parsed.host = parsed.host.substr(1, colon - 2);
  parsed.port = absl::StrCat(port);
  return parsed;
}

absl::StatusOr<RawAddress> UnixAddress(const std::string& path) {
  RawAddress raw;
  auto* un = reinterpret_cast<sockaddr_un*>(&raw.storage);
  if (path.size() >= sizeof(un->sun_path)) {
    return absl::InvalidArgumentError(absl::StrCat("the path of a unix socket has at most ", sizeof(un->sun_path) - 1,
                                                   " characters, this one ", path.size(), ": ", path));
  }
  un->sun_family = AF_UNIX;
  std::memcpy(un->sun_path, path.data(), path.size());
  raw.size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + path.size() + 1);
  return raw;
}

std::string ToText(const RawAddress& address) {
  char text[INET6_ADDRSTRLEN] = "";
  if (address.storage.ss_family == AF_INET) {
    const auto* in = reinterpret_cast<const sockaddr_in*>(&address.storage);
    inet_ntop(AF_INET, &in->sin_addr, text, sizeof(text));
    return absl::StrCat(text, ":", ntohs(in->sin_port));
  }
  if (address.storage.ss_family == AF_INET6) {
    const auto* in6 = reinterpret_cast<const sockaddr_in6*>(&address.storage);
    inet_ntop(AF_INET6, &in6->sin6_addr, text, sizeof(text));
    return absl::StrCat("[", text, "]:", ntohs(in6->sin6_port));
  }
  return "unix";
}

absl::StatusOr<ListeningSocket> ListenOn(const std::string& address) {
  auto parsed = ParseAddress(address);
  if (!parsed.ok()) return parsed.status();
  if (!parsed->unix_path.empty()) return ListenOnUnix(address, parsed->unix_path);
  return ListenOnTcp(address, *parsed);
}

void SetNoDelay(int fd) {
  const int on = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
}

}  // namespace parkway::fabric
