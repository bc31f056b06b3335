// A cluster that `parkway up` runs on this machine, as files: one directory per name under ${XDG_STATE_HOME}/parkway,
// readable by its user alone, with a lock that the supervisor holds while it lives, a record of what runs where, and
// the logs. The other commands and python/parkway find a cluster through these. Plain functions, any thread.
#pragma once

#include <sys/types.h>

#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace parkway::cli {

struct ClusterPaths {
  std::string name;
  std::string dir;           // state directory, mode 0700
  std::string lock;          // POSIX lock: its holder is the supervisor
  std::string record;        // ClusterRecord as JSON, there while the cluster runs
  std::string logs;          // directory of <role>.log
  std::string proxy_socket;  // in lower case, since JAX lowers its target; short enough for a socket
  std::string transfers;     // the proxy's large-transfer directory, in memory
};

// Names are lower case, digits, '-', '_' and '.', at most 40: they become part of a socket's path.
absl::StatusOr<ClusterPaths> PathsOf(const std::string& name);

// Makes the directories, or checks that those that exist belong to this user and nobody else can write there.
absl::Status MakeDirectories(const ClusterPaths& paths);

// Removes what must not outlive the cluster: record, socket, transfers. Logs stay.
void RemoveRuntimeFiles(const ClusterPaths& paths);

// Process that holds the lock; 0: the cluster doesn't run.
pid_t SupervisorOf(const ClusterPaths& paths);

// Takes the lock for this process, until it ends. FAILED_PRECONDITION naming the holder.
absl::Status TakeLock(const ClusterPaths& paths);

struct RoleRecord {
  std::string role;  // "manager", "worker-0-1", "proxy"
  int pid = 0;       // 0: not running just now
  int restarts = 0;
  std::string log;
};

struct ClusterRecord {
  std::string name;
  int supervisor_pid = 0;
  bool ready = false;
  int slices = 0, hosts_per_slice = 0, devices_per_host = 0;
  std::string manager_address;
  std::string proxy_address;
  std::string proxy_socket;
  std::string transfers;
  std::vector<RoleRecord> roles;
};

absl::Status WriteRecord(const ClusterPaths& paths, const ClusterRecord& record);

// FAILED_PRECONDITION when no cluster of that name runs, with what to do.
absl::StatusOr<ClusterRecord> ReadRecord(const ClusterPaths& paths);

// What a client's environment needs; through the proxy's socket, or by TCP.
std::map<std::string, std::string> ClientEnvironment(const ClusterRecord& record, bool tcp);

// Last lines of a file, each after `indent`.
std::string TailOf(const std::string& path, int lines, const std::string& indent);

}  // namespace parkway::cli
