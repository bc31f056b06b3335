#include "base/executor.h"

#include <chrono>
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "absl/time/clock.h"

namespace parkway {
namespace {

using Clock = std::chrono::steady_clock;

// The farthest that a timer waits. Keeps the arithmetic of infinite delays away from overflow.
constexpr absl::Duration kLongestDelay = absl::Hours(24 * 365);

class SerialExecutor : public Executor {
 public:
  SerialExecutor() : timer_thread_([this] { RunTimers(); }) {}

  ~SerialExecutor() override {
    std::deque<Task> queue;
    std::map<TimerId, Timer> timers;
    {
      std::unique_lock lock(mutex_);
      stopping_ = true;
      queue.swap(queue_);
      timers.swap(timers_);
      due_.clear();
      idle_.wait(lock, [this] { return !running_; });
    }
    timer_changed_.notify_one();
    timer_thread_.join();
  }

  void Post(Task task) override {
    {
      std::lock_guard lock(mutex_);
      if (stopping_) return;
      if (running_) {
        queue_.push_back(std::move(task));
        return;
      }
      running_ = true;
    }
    while (task) {
      task();
      task = nullptr;  // what it held is freed before the next task runs, and not under the lock
      task = Next();
    }
  }

  TimerId After(absl::Duration delay, Task task) override {
    const absl::Duration wait = std::min(std::max(delay, absl::ZeroDuration()), kLongestDelay);
    const Clock::time_point when = Clock::now() + absl::ToChronoNanoseconds(wait);
    bool first;
    TimerId id;
    {
      std::lock_guard lock(mutex_);
      if (stopping_) return 0;
      id = next_timer_++;
      timers_.emplace(id, Timer{when, std::move(task)});
      first = due_.empty() || when < due_.begin()->first;
      due_.emplace(when, id);
    }
    if (first) timer_changed_.notify_one();
    return id;
  }

  void Cancel(TimerId timer) override { TakeTimer(timer); }

  absl::Time Now() const override { return absl::Now(); }

 private:
  struct Timer {
    Clock::time_point when;
    Task task;
  };

  // The next queued task; an empty one when the executor has become idle.
  Task Next() {
    std::lock_guard lock(mutex_);
    if (!queue_.empty()) {
      Task next = std::move(queue_.front());
      queue_.pop_front();
      return next;
    }
    running_ = false;
    if (stopping_) idle_.notify_all();
    return nullptr;
  }

  // Empty when the timer has fired or was cancelled.
  Task TakeTimer(TimerId id) {
    std::lock_guard lock(mutex_);
    auto it = timers_.find(id);
    if (it == timers_.end()) return nullptr;
    Task task = std::move(it->second.task);
    due_.erase({it->second.when, id});
    timers_.erase(it);
    return task;
  }

  void RunTimers() {
    std::unique_lock lock(mutex_);
    while (!stopping_) {
      if (due_.empty()) {
        timer_changed_.wait(lock);
        continue;
      }
      const auto [when, id] = *due_.begin();
      if (Clock::now() < when) {
        timer_changed_.wait_until(lock, when);
        continue;
      }
      due_.erase(due_.begin());
      lock.unlock();
      // The task stays in timers_ until its turn comes, so that an earlier task can still cancel it.
      Post([this, id = id] {
        if (Task task = TakeTimer(id)) task();
      });
      lock.lock();
    }
  }

  std::mutex mutex_;
  std::condition_variable timer_changed_;
  std::condition_variable idle_;
  bool running_ = false;
  bool stopping_ = false;
  std::deque<Task> queue_;
  std::map<TimerId, Timer> timers_;
  std::set<std::pair<Clock::time_point, TimerId>> due_;  // timers that have not been posted yet
  TimerId next_timer_ = 1;
  std::thread timer_thread_;
};

}  // namespace

std::unique_ptr<Executor> MakeSerialExecutor() { return std::make_unique<SerialExecutor>(); }

struct SimExecutor::State {
  absl::Time now = absl::FromUnixSeconds(1'000'000'000);
  std::deque<Task> queue;
  std::map<std::pair<absl::Time, TimerId>, Task> timers;
  std::map<TimerId, absl::Time> when;
  TimerId next = 1;
};

SimExecutor::SimExecutor() : state_(std::make_unique<State>()) {}
SimExecutor::~SimExecutor() = default;

void SimExecutor::Post(Task task) { state_->queue.push_back(std::move(task)); }

TimerId SimExecutor::After(absl::Duration delay, Task task) {
  const TimerId id = state_->next++;
  const absl::Time when = state_->now + std::max(delay, absl::ZeroDuration());
  state_->timers.emplace(std::pair(when, id), std::move(task));
  state_->when.emplace(id, when);
  return id;
}

void SimExecutor::Cancel(TimerId timer) {
  auto it = state_->when.find(timer);
  if (it == state_->when.end()) return;
  auto node = state_->timers.extract({it->second, timer});
  state_->when.erase(it);
}

absl::Time SimExecutor::Now() const { return state_->now; }

int SimExecutor::RunUntilIdle() {
  int ran = 0;
  for (; !state_->queue.empty(); ++ran) {
    Task task = std::move(state_->queue.front());
    state_->queue.pop_front();
    task();
  }
  return ran;
}

void SimExecutor::Advance(absl::Duration by) {
  const absl::Time end = state_->now + by;
  RunUntilIdle();
  while (!state_->timers.empty() && state_->timers.begin()->first.first <= end) {
    auto node = state_->timers.extract(state_->timers.begin());
    state_->now = node.key().first;
    state_->when.erase(node.key().second);
    node.mapped()();
    RunUntilIdle();
  }
  state_->now = end;
}

}  // namespace parkway
