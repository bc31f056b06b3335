#include "cli/ports.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "base/random.h"

namespace parkway::cli {
namespace {

namespace fs = std::filesystem;

constexpr int kLowestBase = 20000, kHighestBase = 32000;  // the kernel's own ports start at 32768
constexpr int kTries = 200;

// Whether this process could listen on 127.0.0.1:`port` as the roles do (they set SO_REUSEADDR).
bool IsFree(int port) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return false;
  const int on = 1;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const bool is_free = bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0 && listen(fd, 1) == 0;
  close(fd);
  return is_free;
}

// Inode of the socket that listens on `port`, as /proc/net/tcp tells; empty: none is listed.
std::string ListeningInode(int port) {
  for (const char* table : {"/proc/net/tcp", "/proc/net/tcp6"}) {
    std::ifstream file(table);
    for (std::string line; std::getline(file, line);) {
      const std::vector<std::string> fields = absl::StrSplit(line, ' ', absl::SkipWhitespace());
      if (fields.size() < 10 || fields[3] != "0A") continue;  // 0A: listening
      int listed = 0;
      if (absl::SimpleHexAtoi(fields[1].substr(fields[1].rfind(':') + 1), &listed) && listed == port) return fields[9];
    }
  }
  return "";
}

std::string ProcessHolding(const std::string& inode) {
  std::error_code ignored;  // other users' processes can't be looked into
  const std::string wanted = absl::StrCat("socket:[", inode, "]");
  for (const auto& process : fs::directory_iterator("/proc", ignored)) {
    const std::string pid = process.path().filename();
    if (!absl::ascii_isdigit(pid[0])) continue;
    for (const auto& fd : fs::directory_iterator(process.path() / "fd", ignored)) {
      if (fs::read_symlink(fd.path(), ignored) != wanted) continue;
      std::ifstream file(process.path() / "cmdline");
      std::stringstream command;
      command << file.rdbuf();
      std::string text = absl::StrReplaceAll(command.str(), {{std::string(1, '\0'), " "}});
      return absl::StrCat("process ", pid, " (", text.substr(0, 80), ")");
    }
  }
  return "a process of another user or container";
}

}  // namespace

absl::Status CheckPortsFree(const std::vector<int>& ports) {
  for (const int port : ports) {
    if (port < 1 || port > 65535) return absl::InvalidArgumentError(absl::StrCat(port, " is no port"));
    if (IsFree(port)) continue;
    const std::string inode = ListeningInode(port);
    return absl::FailedPreconditionError(
        absl::StrCat("port ", port, " is in use", inode.empty() ? "" : absl::StrCat(" by ", ProcessHolding(inode))));
  }
  return absl::OkStatus();
}

absl::StatusOr<int> FindFreeBase(const std::vector<int>& offsets) {
  for (int i = 0; i < kTries; ++i) {
    const int base = kLowestBase + static_cast<int>(RandomUint64() % (kHighestBase - kLowestBase));
    if (std::all_of(offsets.begin(), offsets.end(), [&](int offset) { return IsFree(base + offset); })) return base;
  }
  return absl::ResourceExhaustedError(absl::StrCat("no ", offsets.size(), " free ports between ", kLowestBase, " and ",
                                                   kHighestBase, " on this machine; choose some with --port"));
}

}  // namespace parkway::cli
