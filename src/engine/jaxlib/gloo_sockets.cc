#include "engine/jaxlib/gloo_sockets.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace parkway::engine {
namespace {

// In a key's value the address, a sockaddr as it lies in memory, begins here (jaxlib 0.10.1 to 0.12.0.1).
constexpr size_t kAddressOffset = 18;

// Empty for families that Gloo doesn't use.
std::string Name(const sockaddr_storage& address) {
  char host[INET6_ADDRSTRLEN];
  if (address.ss_family == AF_INET) {
    const auto& v4 = reinterpret_cast<const sockaddr_in&>(address);
    if (inet_ntop(AF_INET, &v4.sin_addr, host, sizeof(host)) == nullptr) return "";
    return absl::StrCat(host, ":", ntohs(v4.sin_port));
  }
  if (address.ss_family == AF_INET6) {
    const auto& v6 = reinterpret_cast<const sockaddr_in6&>(address);
    if (inet_ntop(AF_INET6, &v6.sin6_addr, host, sizeof(host)) == nullptr) return "";
    return absl::StrCat("[", host, "]:", ntohs(v6.sin6_port));
  }
  return "";
}

bool CutIfNamed(int fd, absl::Span<const std::string> listeners) {
  // Gloo closes its own sockets meanwhile, and the number may become something else's: look and act through a
  // duplicate.
  const int held = fcntl(fd, F_DUPFD_CLOEXEC, 0);
  if (held < 0) return false;
  sockaddr_storage local{};
  sockaddr_storage remote{};
  socklen_t local_size = sizeof(local);
  socklen_t remote_size = sizeof(remote);
  bool cut = false;
  if (getpeername(held, reinterpret_cast<sockaddr*>(&remote), &remote_size) == 0 &&
      getsockname(held, reinterpret_cast<sockaddr*>(&local), &local_size) == 0) {
    for (const std::string& name : {Name(local), Name(remote)}) {
      if (name.empty() || std::find(listeners.begin(), listeners.end(), name) == listeners.end()) continue;
      cut = shutdown(held, SHUT_RDWR) == 0;
      break;
    }
  }
  close(held);
  return cut;
}

}  // namespace

std::vector<std::string> GlooListeners(absl::Span<const std::string> key_values) {
  std::vector<std::string> listeners;
  for (const std::string& value : key_values) {
    sockaddr_storage address{};
    if (value.size() <= kAddressOffset) continue;
    memcpy(&address, value.data() + kAddressOffset, std::min(sizeof(address), value.size() - kAddressOffset));
    std::string name = Name(address);
    if (!name.empty() && std::find(listeners.begin(), listeners.end(), name) == listeners.end()) {
      listeners.push_back(std::move(name));
    }
  }
  return listeners;
}

int CutConnections(absl::Span<const std::string> listeners) {
  if (listeners.empty()) return 0;
  DIR* directory = opendir("/proc/self/fd");
  if (directory == nullptr) return 0;
  std::vector<int> fds;
  while (const dirent* entry = readdir(directory)) {
    if (entry->d_name[0] != '.') fds.push_back(atoi(entry->d_name));
  }
  closedir(directory);
  int cut = 0;
  for (int fd : fds) cut += CutIfNamed(fd, listeners) ? 1 : 0;
  return cut;
}

}  // namespace parkway::engine
