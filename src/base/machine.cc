#include "base/machine.h"

#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <optional>

#include "absl/strings/str_cat.h"

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

void RaiseOpenFileLimit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

}  // namespace parkway
