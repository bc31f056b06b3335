// Sends an engine's events up its link, merged. The first event of a quiet moment goes at once, on the thread that
// brings it; what comes while a message is being encoded and written goes together in the next one. Events that nobody
// waits for ride along with others, or go after limits::kLazyEventDelay.
//
// Any thread may emit.
#pragma once

#include <functional>
#include <memory>
#include <mutex>

#include "absl/functional/function_ref.h"
#include "base/executor.h"
#include "fabric/link.h"
#include "proto/parkway/engine.pb.h"

namespace parkway::engine {

class EventSender : public std::enable_shared_from_this<EventSender> {
 public:
  // `clock` outlives the sender's last event.
  explicit EventSender(Executor& clock) : clock_(clock) {}

  // `send` takes one encoded Events. Nothing is sent before; call it once.
  void Start(std::function<void(fabric::Frame)> send);
  // Nothing is sent any more when it returns, except by a thread that is sending right now.
  void Stop();

  void Emit(absl::FunctionRef<void(Events&)> add);
  void EmitLazily(absl::FunctionRef<void(Events&)> add);

 private:
  void SendPending(std::unique_lock<std::mutex>& lock);

  Executor& clock_;
  std::mutex mutex_;
  Events pending_;
  bool has_pending_ = false;
  bool sending_ = false;
  bool timer_set_ = false;
  std::function<void(fabric::Frame)> send_;
};

}  // namespace parkway::engine
