#include "engine/host_runner.h"

#include <pthread.h>

#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "base/limits.h"

namespace parkway::engine {
namespace {

class ThreadRunner : public Runner {
 public:
  ThreadRunner(std::string name, int threads)
      : state_(std::make_shared<State>()), name_(std::move(name)), limit_(threads) {}

  ~ThreadRunner() override {
    std::deque<Task> dropped;
    {
      std::lock_guard<std::mutex> lock(state_->mutex);
      state_->stopping = true;
      dropped.swap(state_->tasks);
    }
    state_->wake.notify_all();
    for (std::thread& thread : threads_) {
      if (thread.get_id() == std::this_thread::get_id()) {
        thread.detach();
      } else {
        thread.join();
      }
    }
  }

  void Post(Task task) override {
    {
      std::lock_guard<std::mutex> lock(state_->mutex);
      if (state_->stopping) return;
      state_->tasks.push_back(std::move(task));
      if (static_cast<int>(state_->tasks.size()) > state_->idle && static_cast<int>(threads_.size()) < limit_)
        StartThread();
    }
    state_->wake.notify_one();
  }

 private:
  // Outlives the runner where it is destroyed inside one of its own tasks.
  struct State {
    std::mutex mutex;
    std::condition_variable wake;
    std::deque<Task> tasks;
    int idle = 0;
    bool stopping = false;
  };

  static void Work(const std::shared_ptr<State>& state) {
    std::unique_lock<std::mutex> lock(state->mutex);
    while (true) {
      ++state->idle;
      state->wake.wait(lock, [&] { return state->stopping || !state->tasks.empty(); });
      --state->idle;
      if (state->stopping) return;
      Task task = std::move(state->tasks.front());
      state->tasks.pop_front();
      lock.unlock();
      task();
      task = nullptr;  // what it holds goes before the next wait
      lock.lock();
    }
  }

  void StartThread() {
    threads_.emplace_back([state = state_] { Work(state); });
    pthread_setname_np(threads_.back().native_handle(), name_.substr(0, 15).c_str());
  }

  const std::shared_ptr<State> state_;
  const std::string name_;
  const int limit_;
  std::vector<std::thread> threads_;  // guarded by state_->mutex until destruction
};

class SimRunner : public Runner {
 public:
  explicit SimRunner(SimExecutor& executor) : executor_(executor), alive_(std::make_shared<bool>(true)) {}
  ~SimRunner() override { *alive_ = false; }
  void Post(Task task) override {
    executor_.Post([alive = alive_, task = std::move(task)]() mutable {
      if (*alive) task();
    });
  }

 private:
  SimExecutor& executor_;
  const std::shared_ptr<bool> alive_;
};

}  // namespace

std::unique_ptr<Runner> MakeThreadRunner(const std::string& name, int threads) {
  return std::make_unique<ThreadRunner>(name, threads);
}

std::unique_ptr<Runner> MakeSimRunner(SimExecutor& executor) { return std::make_unique<SimRunner>(executor); }

ProcessThreads::ProcessThreads()
    : clock_(MakeSerialExecutor()), pool_(MakeThreadRunner("pool", limits::kHostPoolThreads)) {}

HostThreads ProcessThreads::threads() {
  return {.make_launcher = [](const std::string& name) { return MakeThreadRunner(name, 1); },
          .pool = pool_.get(),
          .clock = clock_.get()};
}

HostThreads SimThreads(SimExecutor& executor, Runner& pool) {
  return {.make_launcher = [&executor](const std::string&) { return MakeSimRunner(executor); },
          .pool = &pool,
          .clock = &executor};
}

}  // namespace parkway::engine
