// Executes a lease's operations (proto/parkway/engine.proto) against an Engine, and answers with events. It owns what
// the operations made on this host: the table of arrays, by shard bytes or a first cause, executables, contexts with
// one launch queue each, and bytes on their way in or out. It decides nothing: order and placement are the proxy's.
//
// Operations come in one order. Each is entered in the tables as it is read: its inputs are bound to what stands there,
// its outputs are promised. What then happens follows the data: a launch waits, at the head of its context's queue, for
// inputs that another queue has not launched yet; a read or an export asks for the bytes as soon as its array was
// launched. So every wait is for something earlier in the order, and none can close a circle. A launch that is known to
// return at once runs on the thread that read the operation when nothing is before it; others run on their context's
// thread.
//
// Nonsense of any kind is a Failure of its operation. Control operations (contexts, keys, aborts; reads and exports
// too) may come beside the order, on another thread.
//
// Threads: OnMessage of the ordered operations from one thread at a time; OnControl from any. The engine, the bulk
// server and the threads outlive the host.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "engine/arena.h"
#include "engine/engine.h"
#include "engine/host_runner.h"
#include "fabric/bulk.h"
#include "fabric/link.h"
#include "proto/parkway/engine.pb.h"

namespace parkway::engine {

class HostImpl;

struct HostOptions {
  uint64_t incarnation = 0;
  std::string machine;       // base/machine.h
  int64_t memory_bytes = 0;  // of all devices together; 0: no limit of our own
  Arena* arena = nullptr;    // outlives the host; null: arrays of host memory kinds lie in the engine
};

struct HostStats {
  size_t arrays = 0, executables = 0, contexts = 0;
  size_t operations = 0;  // launches that have not ended
  uint64_t launches_inline = 0, launches_queued = 0;
};

class EngineHost {
 public:
  EngineHost(HostOptions options, Engine& engine, fabric::Bulk& bulk, HostThreads threads);
  ~EngineHost();
  EngineHost(const EngineHost&) = delete;

  EngineHello Hello() const;

  // Binds the host to its proxy. FAILED_PRECONDITION when the devices that it names aren't this engine's, or when there
  // is one already. `send` takes encoded Events and is called from any thread; the first is the Hello.
  absl::Status Start(const ProxyHello& proxy, std::function<void(fabric::Frame)> send);

  // One encoded Op. INVALID_ARGUMENT when it is none: the link should close.
  absl::Status OnMessage(std::string_view message);
  absl::Status OnControl(std::string_view message);

  // Drops everything that the lease held; nothing is sent any more.
  void Stop();

  HostStats Stats() const;

 private:
  const std::shared_ptr<HostImpl> impl_;
};

}  // namespace parkway::engine
