// A worker's logic: which engine should run, which does, what the manager is told. No process and no socket here; tests
// drive it under a simulated clock. The owner calls everything from tasks of one executor.
//
// One engine at a time. An engine that ends is started again, at once the first time, later when it keeps dying; while
// the manager is away engines go on. An engine is stopped when the manager says so or another lease needs its place.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "base/executor.h"
#include "proto/parkway/manager.pb.h"
#include "worker/engine_process.h"

namespace parkway::worker {

class Worker {
 public:
  struct Hooks {
    // Starts an engine process.
    std::function<absl::StatusOr<std::unique_ptr<EngineProcess>>(const StartEngine& start,
                                                                 EngineProcess::Events events)>
        start_engine;
    std::function<void(const WorkerMessage&)> send;  // dropped while the manager is away
    std::function<void()> lease_over;                // its engine is gone, and what outlives engines may go
  };

  // `hello` without engines and last seat; those are this class's to know.
  Worker(Executor* executor, WorkerHello hello, Hooks hooks);
  ~Worker();
  Worker(const Worker&) = delete;

  WorkerHello Hello() const;  // as things are now
  void OnMessage(const ManagerToWorker& message);
  // Says goodbye and stops the engine; `done` comes when it is gone.
  void Leave(const std::string& reason, std::function<void()> done);

  void set_address(const std::string& address) { hello_.set_address(address); }
  const WorkerHello& identity() const { return hello_; }
  const EngineState* engine() const { return engine_ ? &state_ : nullptr; }

 private:
  void Start();
  void OnReady(const EngineEndpoint& endpoint);
  void OnExit(const absl::Status& cause);
  void Report() const;

  Executor* executor_;
  WorkerHello hello_;
  Hooks hooks_;
  std::optional<StartEngine> wanted_;
  std::unique_ptr<EngineProcess> engine_;
  EngineState state_;  // of the engine, with the last one's cause until it is up; its lease is the one it runs for
  absl::Time started_;
  absl::Duration pause_;  // before the next start
  TimerId retry_ = 0;
  bool leaving_ = false;
  std::function<void()> left_;
};

}  // namespace parkway::worker
