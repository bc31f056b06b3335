// Streams that keep back replies for a moment, and the time by which they must go out. The polling thread looks at it
// between events and sleeps no longer than it says, so that a flush costs no timer thread: a gRPC alarm would wake two
// of them.
//
// Add may be called from any thread; the rest is the polling thread's.
#pragma once

#include <grpcpp/alarm.h>
#include <grpcpp/grpcpp.h>

#include <atomic>
#include <chrono>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>

#include "absl/time/time.h"
#include "base/limits.h"
#include "proxy/grpc_op.h"

namespace parkway::proxy {

class Flushable {
 public:
  virtual void Flush() = 0;

 protected:
  ~Flushable() = default;
};

class FlushQueue final : private Tag {
 public:
  using Clock = std::chrono::system_clock;

  // Before any Add.
  void Start(grpc::CompletionQueue* queue) { queue_ = queue; }
  void SetPoller() { poller_ = std::this_thread::get_id(); }

  // Flushes it, if it is still there, limits::kReplyFlush from now.
  void Add(std::weak_ptr<Flushable> stream) {
    const Clock::time_point when = Clock::now() + absl::ToChronoMicroseconds(limits::kReplyFlush);
    std::lock_guard lock(mutex_);
    due_.emplace_back(when, std::move(stream));
    // The polling thread may be asleep without a limit; the next event that it meets will do, if one comes.
    if (std::this_thread::get_id() == poller_ || std::exchange(alarm_set_, true)) return;
    alarm_.Set(queue_, when, static_cast<Tag*>(this));
  }

  // When the first one is due; far away when there is none.
  Clock::time_point Next() {
    std::lock_guard lock(mutex_);
    return due_.empty() ? Clock::time_point::max() : due_.front().first;
  }
  void FlushDue() {
    while (true) {
      std::weak_ptr<Flushable> stream;
      {
        std::lock_guard lock(mutex_);
        if (due_.empty() || due_.front().first > Clock::now()) return;
        stream = std::move(due_.front().second);
        due_.pop_front();
      }
      if (auto alive = stream.lock()) alive->Flush();
    }
  }
  // Before the queue is shut down.
  void Stop() { alarm_.Cancel(); }

 private:
  void Run(bool /*ok*/) override {
    std::lock_guard lock(mutex_);
    alarm_set_ = false;
  }

  grpc::CompletionQueue* queue_ = nullptr;
  std::atomic<std::thread::id> poller_;
  std::mutex mutex_;
  std::deque<std::pair<Clock::time_point, std::weak_ptr<Flushable>>> due_;  // in the order of their times
  bool alarm_set_ = false;
  grpc::Alarm alarm_;
};

}  // namespace parkway::proxy
