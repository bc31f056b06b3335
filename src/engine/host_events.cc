#include "engine/host_events.h"

#include <string>
#include <utility>

#include "base/limits.h"

namespace parkway::engine {

void EventSender::Start(std::function<void(fabric::Frame)> send) {
  std::unique_lock<std::mutex> lock(mutex_);
  send_ = std::move(send);
  SendPending(lock);
}

void EventSender::Stop() {
  std::lock_guard<std::mutex> lock(mutex_);
  send_ = nullptr;
}

void EventSender::Emit(absl::FunctionRef<void(Events&)> add) {
  std::unique_lock<std::mutex> lock(mutex_);
  add(pending_);
  has_pending_ = true;
  SendPending(lock);
}

void EventSender::EmitLazily(absl::FunctionRef<void(Events&)> add) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    add(pending_);
    has_pending_ = true;
    if (timer_set_ || sending_) return;
    timer_set_ = true;
  }
  clock_.After(limits::kLazyEventDelay, [self = shared_from_this()] {
    std::unique_lock<std::mutex> lock(self->mutex_);
    self->timer_set_ = false;
    self->SendPending(lock);
  });
}

void EventSender::SendPending(std::unique_lock<std::mutex>& lock) {
  if (sending_) return;
  sending_ = true;
  while (has_pending_ && send_) {
    Events events;
    events.Swap(&pending_);
    has_pending_ = false;
    std::function<void(fabric::Frame)> send = send_;
    lock.unlock();
    send(std::make_shared<const std::string>(events.SerializeAsString()));
    lock.lock();
  }
  sending_ = false;
}

}  // namespace parkway::engine
