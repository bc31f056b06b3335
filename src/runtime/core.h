// The core owns all logical state of a proxy: sessions, arrays, executables, futures, contexts, and the one order in
// which operations go to the engines. It knows no gRPC and no socket: requests come through Session, engines stand
// behind EngineLink, programs are compiled by a Compiler, and time, order and randomness come through interfaces, so
// that a test runs the same core in one thread.
//
// Every method runs inside a task of the executor that it was made with, except where it says otherwise.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "base/bytes.h"
#include "base/executor.h"
#include "fabric/link.h"
#include "proto/parkway/compiler.pb.h"
#include "proto/parkway/engine.pb.h"
#include "runtime/session.h"
#include "runtime/topology.h"

namespace parkway::runtime {

// Turns programs into executables somewhere else, for one of several sessions. `done` may come on any thread.
class Compiler {
 public:
  virtual ~Compiler() = default;
  virtual void Compile(uint64_t session, CompileJob job,
                       absl::AnyInvocable<void(absl::StatusOr<CompiledProgram>)> done) = 0;
  virtual void Cancel(uint64_t job) = 0;
};

// The way to one engine. Never blocks, keeps order.
class EngineLink {
 public:
  virtual ~EngineLink() = default;
  virtual void Send(fabric::Frame operation) = 0;         // an Op, in the one order
  virtual void SendControl(fabric::Frame operation) = 0;  // an Op that must not wait behind others
};

// Bulk bytes of the proxy's process.
class Transfers {
 public:
  virtual ~Transfers() = default;
  virtual Transfer Offer(Bytes bytes) = 0;
  virtual void Drop(uint64_t id) = 0;
  virtual void Fetch(const Transfer& transfer, absl::AnyInvocable<void(absl::StatusOr<Bytes>)> done) = 0;
};

struct CoreOptions {
  Executor* executor = nullptr;    // outlives the core
  Compiler* compiler = nullptr;    // outlives the core
  Transfers* transfers = nullptr;  // outlives the core
  Topology topology{{}};
  absl::AnyInvocable<uint64_t()> random;
  // Asks for an engine to be killed and started again (a program in it does not end).
  absl::AnyInvocable<void(int host, uint64_t incarnation, std::string reason)> restart_engine;
};

struct CoreStats {
  int sessions = 0;
  uint64_t arrays = 0, executables = 0, programs_run = 0;
  int64_t bytes_held = 0;  // in the engines' memory
  std::vector<std::pair<std::string, SessionStats>> by_session;
};

class Core {
 public:
  static std::unique_ptr<Core> Create(CoreOptions options);
  virtual ~Core() = default;

  virtual const Topology& topology() const = 0;

  // The session is gone, with all that it held, when the returned pointer is destroyed (inside a task).
  virtual std::unique_ptr<Session> OpenSession(std::string name) = 0;

  // ---- Engines. `host` is an index of the topology.
  virtual void OnEngineUp(int host, const EngineHello& hello, std::unique_ptr<EngineLink> link) = 0;
  virtual void OnEvents(int host, uint64_t incarnation, const Events& events) = 0;
  // The engine is gone. `cause` says who and why; `returns`: it is being started again, so that work may wait for it.
  virtual void OnEngineDown(int host, uint64_t incarnation, absl::Status cause, bool returns) = 0;

  // What the session (SessionStats::session; 0: every one) has launched ends with CANCELLED, and names `by`: at once
  // what no engine has yet; the rest, with its engines (eviction.h), when it does not end within
  // limits::kEndlessProgramGrace. The session goes on, and keeps its arrays.
  virtual void CancelPrograms(uint64_t session, const std::string& by) = 0;

  virtual CoreStats Stats() const = 0;
};

}  // namespace parkway::runtime
