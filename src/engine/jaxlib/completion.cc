#include "engine/jaxlib/completion.h"

#include <atomic>
#include <deque>
#include <thread>

#include "absl/container/flat_hash_map.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "base/limits.h"
#include "engine/jaxlib/api.h"
#include "engine/jaxlib/references.h"

namespace parkway::engine {

void Completion::Then(Callback callback) {
  {
    absl::MutexLock lock(&mutex_);
    if (!done_ || running_) {
      callbacks_.push_back(std::move(callback));
      return;
    }
  }
  callback(status());
}

void Completion::Finish(const absl::Status& status) {
  std::vector<Callback> batch;
  {
    absl::MutexLock lock(&mutex_);
    if (done_) return;
    done_ = running_ = true;
    status_ = status;
    batch.swap(callbacks_);
  }
  while (true) {
    for (Callback& callback : batch) callback(status);
    batch.clear();
    absl::MutexLock lock(&mutex_);
    batch.swap(callbacks_);
    if (batch.empty()) {
      running_ = false;
      return;
    }
  }
}

bool Completion::done() const {
  absl::MutexLock lock(&mutex_);
  return done_;
}

absl::Status Completion::status() const {
  absl::MutexLock lock(&mutex_);
  return status_;
}

absl::Status Completion::Wait() {
  auto ended = std::make_shared<absl::Notification>();
  Then([ended](const absl::Status&) { ended->Notify(); });
  ended->WaitForNotification();
  return status();
}

CompletionRef JoinCompletions(const std::vector<CompletionRef>& parts) {
  std::vector<CompletionRef> pending;
  for (const CompletionRef& part : parts) {
    if (part != nullptr && (!part->done() || !part->status().ok())) pending.push_back(part);
  }
  if (pending.empty()) return nullptr;
  if (pending.size() == 1) return pending[0];
  auto joined = std::make_shared<Completion>();
  auto left = std::make_shared<std::atomic<size_t>>(pending.size());
  auto all = std::make_shared<const std::vector<CompletionRef>>(pending);
  for (const CompletionRef& part : pending) {
    part->Then([joined, left, all](const absl::Status&) {
      if (left->fetch_sub(1) != 1) return;
      absl::Status first;
      for (const CompletionRef& one : *all) first.Update(one->status());
      joined->Finish(first);
    });
  }
  return joined;
}

namespace {

class WaitPool {
 public:
  explicit WaitPool(const Api& api) : api_(api) {}

  void Add(const void* lane, Awaited awaited) {
    absl::MutexLock lock(&mutex_);
    Lane& queue = lanes_[lane];
    queue.items.push_back(std::make_shared<Awaited>(std::move(awaited)));
    if (queue.manned) return;
    queue.manned = true;
    unmanned_.push_back(lane);
    if (idle_ >= static_cast<int>(unmanned_.size()) || threads_ == limits::kEngineWaiters) return;
    ++threads_;
    std::thread(&WaitPool::Run, this).detach();
  }

 private:
  using Item = std::shared_ptr<Awaited>;
  struct Lane {
    std::deque<Item> items;  // the first is the one blocked in
    bool manned = false;     // a thread has it, or it waits for one
  };

  void Run() {
    absl::MutexLock lock(&mutex_);
    while (true) {
      ++idle_;
      mutex_.Await(absl::Condition(
          +[](std::deque<const void*>* lanes) { return !lanes->empty(); }, &unmanned_));
      --idle_;
      const void* lane = unmanned_.front();
      unmanned_.pop_front();
      ServeLane(lane);
    }
  }

  void ServeLane(const void* lane) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    while (true) {
      auto found = lanes_.find(lane);
      if (found->second.items.empty()) {
        lanes_.erase(found);
        return;
      }
      Item item = found->second.items.front();
      mutex_.Unlock();
      const absl::Status end = Block(*item);
      item->completion->Finish(item->explain ? item->explain(end) : end);
      mutex_.Lock();
      lanes_.find(lane)->second.items.pop_front();
    }
  }

  absl::Status Block(const Awaited& awaited) {
    Gil gil;
    DropQueued();
    if (awaited.token != nullptr && *awaited.token) return BlockOn(awaited.token->get());
    absl::Status first;
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(awaited.arrays->get()); ++i) {
      first.Update(BlockOn(PyList_GET_ITEM(awaited.arrays->get(), i)));
    }
    return first;
  }

  absl::Status BlockOn(PyObject* object) {
    PyRef done(PyObject_CallMethodNoArgs(object, api_.name_block_until_ready));
    return done ? absl::OkStatus() : TakePythonError();
  }

  const Api& api_;
  absl::Mutex mutex_;
  absl::flat_hash_map<const void*, Lane> lanes_ ABSL_GUARDED_BY(mutex_);
  std::deque<const void*> unmanned_ ABSL_GUARDED_BY(mutex_);
  int idle_ ABSL_GUARDED_BY(mutex_) = 0;
  int threads_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace

void AwaitInLane(const void* lane, Awaited awaited) {
  static WaitPool* pool = new WaitPool(**GetApi());
  pool->Add(lane, std::move(awaited));
}

}  // namespace parkway::engine
