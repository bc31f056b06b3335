#include "cli/cluster.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace parkway::cli {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMaxName = 40;
constexpr size_t kMaxSocketPath = 100;            // of the kernel's 107
constexpr int kLargeTransferThreshold = 1 << 20;  // bytes; smaller ones are quicker inside a request

std::string StateHome() {
  const char* xdg = std::getenv("XDG_STATE_HOME");
  if (xdg != nullptr && *xdg == '/') return xdg;
  const char* home = std::getenv("HOME");
  return absl::StrCat(home != nullptr && *home == '/' ? home : absl::StrCat("/tmp/parkway-home-", getuid()),
                      "/.local/state");
}

absl::Status MakePrivateDirectory(const std::string& path) {
  std::error_code error;
  fs::create_directories(fs::path(path).parent_path(), error);
  if (mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) {
    return absl::UnavailableError(absl::StrCat("can't make ", path, ": ", strerror(errno)));
  }
  struct stat info {};
  if (lstat(path.c_str(), &info) != 0 || !S_ISDIR(info.st_mode) || info.st_uid != getuid()) {
    return absl::FailedPreconditionError(absl::StrCat(path, " is not a directory of this user; remove or rename it"));
  }
  if ((info.st_mode & 0077) != 0 && chmod(path.c_str(), 0700) != 0) {
    return absl::UnavailableError(absl::StrCat("can't make ", path, " private: ", strerror(errno)));
  }
  return absl::OkStatus();
}

struct flock WholeFileLock() {
  struct flock lock {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  return lock;
}

}  // namespace

absl::StatusOr<ClusterPaths> PathsOf(const std::string& name) {
  const bool good = !name.empty() && name.size() <= kMaxName && name[0] != '.' && name[0] != '-' &&
                    std::all_of(name.begin(), name.end(), [](char c) {
                      return absl::ascii_islower(c) || absl::ascii_isdigit(c) || c == '-' || c == '_' || c == '.';
                    });
  if (!good) {
    return absl::InvalidArgumentError(absl::StrCat("--name takes up to ", kMaxName,
                                                   " lower-case letters, digits, '-', '_' and '.', not '", name, "'"));
  }
  ClusterPaths paths{.name = name};
  paths.dir = absl::StrCat(StateHome(), "/parkway/", name);
  paths.lock = paths.dir + "/lock";
  paths.record = paths.dir + "/cluster.json";
  paths.logs = paths.dir + "/logs";
  paths.proxy_socket = paths.dir + "/proxy.sock";
  if (paths.proxy_socket.size() > kMaxSocketPath || paths.proxy_socket != absl::AsciiStrToLower(paths.proxy_socket)) {
    paths.proxy_socket = absl::StrCat("/tmp/parkway-", getuid(), "/", name, "/proxy.sock");
  }
  paths.transfers = absl::StrCat("/dev/shm/parkway-", getuid(), "-", name);
  return paths;
}

absl::Status MakeDirectories(const ClusterPaths& paths) {
  PARKWAY_RETURN_IF_ERROR(MakePrivateDirectory(fs::path(paths.dir).parent_path()));
  PARKWAY_RETURN_IF_ERROR(MakePrivateDirectory(paths.dir));
  PARKWAY_RETURN_IF_ERROR(MakePrivateDirectory(paths.logs));
  const std::string socket_dir = fs::path(paths.proxy_socket).parent_path();
  if (socket_dir != paths.dir) {
    PARKWAY_RETURN_IF_ERROR(MakePrivateDirectory(fs::path(socket_dir).parent_path()));
    PARKWAY_RETURN_IF_ERROR(MakePrivateDirectory(socket_dir));
  }
  return MakePrivateDirectory(paths.transfers);
}

void RemoveRuntimeFiles(const ClusterPaths& paths) {
  std::error_code ignored;  // what is not there need not be removed
  fs::remove(paths.record, ignored);
  fs::remove(paths.proxy_socket, ignored);
  fs::remove_all(paths.transfers, ignored);
}

pid_t SupervisorOf(const ClusterPaths& paths) {
  const int fd = open(paths.lock.c_str(), O_RDWR | O_CLOEXEC);
  if (fd < 0) return 0;
  struct flock lock = WholeFileLock();
  const bool asked = fcntl(fd, F_GETLK, &lock) == 0;
  close(fd);
  return asked && lock.l_type != F_UNLCK ? lock.l_pid : 0;
}

absl::Status TakeLock(const ClusterPaths& paths) {
  // Never closed: the first close of any descriptor of the file would drop the lock.
  static int fd = -1;
  fd = open(paths.lock.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (fd < 0) return absl::UnavailableError(absl::StrCat("can't open ", paths.lock, ": ", strerror(errno)));
  struct flock lock = WholeFileLock();
  if (fcntl(fd, F_SETLK, &lock) == 0) return absl::OkStatus();
  lock = WholeFileLock();
  fcntl(fd, F_GETLK, &lock);
  return absl::FailedPreconditionError(
      absl::StrCat("a cluster '", paths.name, "' already runs here (process ", lock.l_pid, "); `parkway down",
                   paths.name == "default" ? "" : " --name " + paths.name, "` stops it, --name starts another one"));
}

absl::Status WriteRecord(const ClusterPaths& paths, const ClusterRecord& record) {
  nlohmann::json roles = nlohmann::json::array();
  for (const RoleRecord& role : record.roles) {
    roles.push_back({{"role", role.role}, {"pid", role.pid}, {"restarts", role.restarts}, {"log", role.log}});
  }
  const nlohmann::json json = {{"name", record.name},
                               {"supervisor_pid", record.supervisor_pid},
                               {"ready", record.ready},
                               {"slices", record.slices},
                               {"hosts_per_slice", record.hosts_per_slice},
                               {"devices_per_host", record.devices_per_host},
                               {"manager_address", record.manager_address},
                               {"proxy_address", record.proxy_address},
                               {"proxy_socket", record.proxy_socket},
                               {"transfers", record.transfers},
                               {"client_environment", ClientEnvironment(record, /*tcp=*/false)},
                               {"roles", roles}};
  const std::string next = paths.record + ".next";
  std::ofstream(next) << json.dump(2) << "\n";
  if (rename(next.c_str(), paths.record.c_str()) != 0) {
    return absl::UnavailableError(absl::StrCat("can't write ", paths.record, ": ", strerror(errno)));
  }
  return absl::OkStatus();
}

absl::StatusOr<ClusterRecord> ReadRecord(const ClusterPaths& paths) {
  const absl::Status none = absl::FailedPreconditionError(
      absl::StrCat("no cluster '", paths.name, "' runs here; `parkway up",
                   paths.name == "default" ? "" : " --name " + paths.name, "` starts it"));
  if (SupervisorOf(paths) == 0) return none;
  std::ifstream file(paths.record);
  if (!file) return none;
  const nlohmann::json json = nlohmann::json::parse(file, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object())
    return absl::FailedPreconditionError(
        absl::StrCat(paths.record, " is damaged; stop the cluster with `parkway down`"));
  ClusterRecord record;
  record.name = json.value("name", "");
  record.supervisor_pid = json.value("supervisor_pid", 0);
  record.ready = json.value("ready", false);
  record.slices = json.value("slices", 0);
  record.hosts_per_slice = json.value("hosts_per_slice", 0);
  record.devices_per_host = json.value("devices_per_host", 0);
  record.manager_address = json.value("manager_address", "");
  record.proxy_address = json.value("proxy_address", "");
  record.proxy_socket = json.value("proxy_socket", "");
  record.transfers = json.value("transfers", "");
  for (const auto& role : json.value("roles", nlohmann::json::array())) {
    record.roles.push_back(
        {role.value("role", ""), role.value("pid", 0), role.value("restarts", 0), role.value("log", "")});
  }
  return record;
}

std::map<std::string, std::string> ClientEnvironment(const ClusterRecord& record, bool tcp) {
  std::map<std::string, std::string> env = {
      {"JAX_PLATFORMS", "proxy"},
      {"JAX_BACKEND_TARGET", absl::StrCat("grpc://", tcp ? record.proxy_address : "unix:" + record.proxy_socket)},
      {"IFRT_PROXY_USE_INSECURE_GRPC_CREDENTIALS", "true"}};
  if (!tcp) {
    env["IFRT_PROXY_GRPC_LARGE_TRANSFER_OPTIMIZATION_DIRECTORY"] = record.transfers;
    env["IFRT_PROXY_GRPC_LARGE_TRANSFER_OPTIMIZATION_THRESHOLD_BYTES"] = absl::StrCat(kLargeTransferThreshold);
  }
  return env;
}

std::string TailOf(const std::string& path, int lines, const std::string& indent) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return absl::StrCat(indent, "(", path, " can't be read)\n");
  file.seekg(0, std::ios::end);
  const auto size = static_cast<int64_t>(file.tellg());
  file.seekg(std::max<int64_t>(0, size - (1 << 16)));
  std::deque<std::string> kept;
  for (std::string line; std::getline(file, line);) {
    kept.push_back(line);
    if (static_cast<int>(kept.size()) > lines) kept.pop_front();
  }
  std::string text;
  for (const std::string& line : kept) absl::StrAppend(&text, indent, line, "\n");
  return text;
}

}  // namespace parkway::cli
