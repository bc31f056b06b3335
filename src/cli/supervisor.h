// Runs the roles of one cluster as child processes on loopback, until it is told to stop: starts them, says when the
// whole is ready, starts again what dies, and at the end stops everything and looks that nothing is left.
//
// Run() belongs to the thread that calls it and returns when all has stopped. Signals (TERM, INT, HUP) are how it is
// told; they must be blocked in every thread before this object is made, which BlockStopSignals does.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "cli/cluster.h"

namespace parkway {
struct ExitStatus;
}

namespace parkway::cli {

struct ClusterShape {
  int slices = 2;
  int hosts_per_slice = 1;
  int devices_per_host = 2;
  int base_port = 29000;          // proxy; the manager's is one more, the workers' start five higher
  pid_t stop_with_pid = 0;        // stop when this process has ended; 0: none
  std::string SliceType() const;  // "cpu:1x2"
};

// The offsets from the base port that a cluster of this shape listens on.
std::vector<int> PortOffsets(const ClusterShape& shape);

void BlockStopSignals();

class Supervisor {
 public:
  // `say` gets each line for the person who started the cluster; `ready` is called once.
  Supervisor(ClusterPaths paths, ClusterShape shape, std::function<void(const std::string&)> say,
             std::function<void(const ClusterRecord&, absl::Duration took)> ready);
  ~Supervisor();
  Supervisor(const Supervisor&) = delete;

  // OK when a signal ended it; otherwise why it can't go on. All children have ended in either case.
  absl::Status Run();

 private:
  struct Role;
  struct Events;

  std::unique_ptr<Role> MakeRole(const std::string& name, std::vector<std::string> arguments);
  absl::Status StartRole(Role& role);
  absl::Status OnExit(Role& role, const ExitStatus& status);
  absl::Status StartDue();
  absl::Status Loop();
  void CheckReady();
  void StopRoles(const std::string& prefix, absl::Duration grace);
  void StopAll();
  void WriteRecordNow();
  absl::Duration UntilNextWork() const;

  const ClusterPaths paths_;
  const ClusterShape shape_;
  const std::function<void(const std::string&)> say_;
  const std::function<void(const ClusterRecord&, absl::Duration)> ready_;
  const absl::Time started_;
  std::shared_ptr<Events> events_;  // shared with the children's exit callbacks
  std::vector<std::unique_ptr<Role>> roles_;
  ClusterRecord record_;
};

}  // namespace parkway::cli
