#include "base/machine.h"

#include <netdb.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <optional>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace parkway {
namespace {

std::string ReadWord(const char* path) {
  std::ifstream file(path);
  std::string word;
  file >> word;
  return word;
}

std::optional<int64_t> ReadNumber(const char* path) {
  std::ifstream file(path);
  int64_t number;
  if (file >> number) return number;
  return std::nullopt;  // no such file, or "max"
}

// The value after `key` in a file of lines "key value ...".
int64_t ReadField(const char* path, std::string_view key, int64_t otherwise) {
  std::ifstream file(path);
  std::string word;
  int64_t number;
  while (file >> word) {
    if (word == key && file >> number) return number;
    file.ignore(std::numeric_limits<std::streamsize>::max(), '\n');
  }
  return otherwise;
}

}  // namespace

const std::string& MachineIdentity() {
  static const std::string* identity = [] {
    struct stat ns {};
    stat("/proc/self/ns/pid", &ns);
    return new std::string(absl::StrCat(ReadWord("/proc/sys/kernel/random/boot_id"), "/", ns.st_ino, "/", getuid()));
  }();
  return *identity;
}

int64_t AvailableMemoryBytes() {
  int64_t left = ReadField("/proc/meminfo", "MemAvailable:", std::numeric_limits<int64_t>::max() >> 10) << 10;
  const auto limit = ReadNumber("/sys/fs/cgroup/memory.max");
  const auto used = ReadNumber("/sys/fs/cgroup/memory.current");
  if (limit && used) {
    // Cached files are given back when memory is short.
    const int64_t cached = ReadField("/sys/fs/cgroup/memory.stat", "inactive_file", 0);
    left = std::min(left, std::max<int64_t>(0, *limit - *used + cached));
  }
  return left;
}

std::string AddressTowards(const std::string& target) {
  const size_t colon = target.rfind(':');
  if (colon == std::string::npos) return "";
  const std::string host(absl::StripSuffix(absl::StripPrefix(target.substr(0, colon), "["), "]"));
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_DGRAM;
  if (getaddrinfo(host.c_str(), target.c_str() + colon + 1, &hints, &found) != 0) return "";
  std::string address;
  for (const addrinfo* a = found; a != nullptr && address.empty(); a = a->ai_next) {
    const int fd = socket(a->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    sockaddr_storage own{};
    socklen_t size = sizeof(own);
    char text[NI_MAXHOST];
    if (fd >= 0 && connect(fd, a->ai_addr, a->ai_addrlen) == 0 &&
        getsockname(fd, reinterpret_cast<sockaddr*>(&own), &size) == 0 &&
        getnameinfo(reinterpret_cast<sockaddr*>(&own), size, text, sizeof(text), nullptr, 0, NI_NUMERICHOST) == 0) {
      address = own.ss_family == AF_INET6 ? absl::StrCat("[", text, "]") : text;
    }
    if (fd >= 0) close(fd);
  }
  freeaddrinfo(found);
  return address;
}

std::string HostName() {
  char name[256] = {};
  return gethostname(name, sizeof(name) - 1) == 0 ? name : "localhost";
}

std::string CpuFeatures() {
  std::ifstream cpus("/proc/cpuinfo");
  for (std::string line; std::getline(cpus, line);) {
    if (absl::StartsWith(line, "flags") || absl::StartsWith(line, "Features")) return line.substr(line.find(':') + 1);
  }
  return "";
}

void RaiseOpenFileLimit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

}  // namespace parkway
