// Connects the core with the engines of its lease: as the manager places, moves and loses them, links to them are made
// and dropped, and the core is told who is up and who is gone, and why. Each engine has two links: one that keeps the
// order of operations, and one for what must not wait behind them.
//
// A broken link tells that something is wrong but not what: the manager knows the cause, and is waited for, at most
// limits::kCauseWait.
//
// Everything happens in tasks of the core's executor, except that messages are decoded on the fabric's thread.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/executor.h"
#include "fabric/link.h"
#include "proto/parkway/manager.pb.h"
#include "runtime/core.h"

namespace parkway::proxy {

class LeaseHosts {
 public:
  struct Options {
    Executor* executor = nullptr;
    runtime::Core* core = nullptr;
    // Fabric::Connect, or a test's own.
    std::function<void(const std::string& address, fabric::LinkHandlers handlers,
                       absl::AnyInvocable<void(absl::StatusOr<std::unique_ptr<fabric::Link>>)> done)>
        connect;
  };
  // What it is given outlives it.
  explicit LeaseHosts(Options options);
  ~LeaseHosts();
  LeaseHosts(const LeaseHosts&) = delete;

  // The whole lease, after every change.
  void OnPlacement(const Placement& placement);

 private:
  class Connection;
  struct HostEntry {
    std::shared_ptr<Connection> connection;  // to the engine of this incarnation, or on the way there; null: none
    uint64_t incarnation = 0;                // 0: no engine is known
    TimerId cause_timer = 0;                 // its link broke; the cause is awaited
    absl::Status down_cause;                 // what the core was told last
    bool returns = false;
  };
  void OnHost(int host, const Placement& placement, const PlacedHost& placed);
  void Lose(int host, absl::Status cause, bool returns);
  void OnBroken(int host, uint64_t incarnation, const absl::Status& why);
  void LogSlices(const Placement& placement);

  Options options_;
  uint64_t lease_ = 0;
  Placement placement_;  // the last one
  std::string waiting_for_;
  std::vector<HostEntry> hosts_;
  std::vector<std::string> slices_;  // physical slice by virtual slice; empty: unplaced
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

// Vector and matrix extensions among the processor features `here` (base/machine.h) that `there` has not: programs
// compiled here may use them. Empty when one of the two is unknown.
std::string MissingExtensions(const std::string& here, const std::string& there);

}  // namespace parkway::proxy
