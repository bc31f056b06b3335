// Lets one proxy, which knows the lease's secret, to an EngineHost. Whoever connects is unknown until the first
// message, a ProxyHello with the right token; anybody else's link is closed, and costs nobody anything. The first good
// link carries the operations; once that is there, others that say `control` carry control operations beside it.
//
// Each link is read by a thread of its own where `own_threads` is set: what a host may run on the thread that reads
// operations then never holds up another link. Without it the fabric's thread reads all of them.
//
// Any thread. The host, the fabric and the clock outlive the door.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "base/executor.h"
#include "engine/host.h"
#include "fabric/link.h"

namespace parkway::engine {

class HostDoor {
 public:
  struct Options {
    std::string token;
    bool own_threads = true;
    // The link of the operations is gone: with it, the lease. Comes once, on the thread that read it.
    std::function<void(absl::Status)> lost;
  };
  HostDoor(EngineHost& host, Executor& clock, Options options);
  // Closes what is open.
  ~HostDoor();
  HostDoor(const HostDoor&) = delete;

  // For Fabric::Listen.
  fabric::Fabric::Accepted Accept(const std::string& peer);

  bool claimed() const;  // a proxy has come

 private:
  struct State;
  const std::shared_ptr<State> state_;
};

}  // namespace parkway::engine
