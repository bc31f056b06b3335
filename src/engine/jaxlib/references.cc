#include "engine/jaxlib/references.h"

#include <glog/logging.h>

#include <atomic>
#include <thread>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "base/limits.h"
#include "engine/jaxlib/api.h"

namespace parkway::engine {
namespace {

class DropQueue {
 public:
  DropQueue() { std::thread(&DropQueue::Run, this).detach(); }

  void Push(PyObject* object) {
    absl::MutexLock lock(&mutex_);
    queue_.push_back(object);
    pending_.store(true, std::memory_order_release);
    garbage_ = true;
  }

  void NoteGarbage(bool clients) {
    absl::MutexLock lock(&mutex_);
    garbage_ = true;
    clients_ |= clients;
  }

  void Drain() {
    if (!pending_.load(std::memory_order_acquire)) return;
    std::vector<PyObject*> dropped;
    {
      absl::MutexLock lock(&mutex_);
      dropped.swap(queue_);
      pending_.store(false, std::memory_order_release);
    }
    for (PyObject* object : dropped) Py_DECREF(object);
  }

 private:
  void Run() {
    const Api& api = **GetApi();
    while (true) {
      bool clients = false;
      {
        absl::MutexLock lock(&mutex_);
        // While there is work all the time, this thread looks again after each sleep, and no drop has to wake it.
        if (!garbage_) mutex_.Await(absl::Condition(&garbage_));
        garbage_ = false;
        std::swap(clients, clients_);
      }
      // A launch that comes meanwhile empties the queue in passing.
      absl::SleepFor(limits::kDropDelay);
      Gil gil;
      Drain();
      if (clients) Call(api.collect_clients);
      // jaxlib itself keeps the host memory of freed arrays until somebody calls it.
      Call(api.collect_garbage);
    }
  }

  static void Call(PyObject* function) {
    if (PyRef done(PyObject_CallNoArgs(function)); !done) LOG(WARNING) << TakePythonError();
  }

  absl::Mutex mutex_;
  std::vector<PyObject*> queue_ ABSL_GUARDED_BY(mutex_);
  bool garbage_ ABSL_GUARDED_BY(mutex_) = false;  // something was dropped since the last look
  bool clients_ ABSL_GUARDED_BY(mutex_) = false;  // perhaps a client's last user
  std::atomic<bool> pending_{false};              // the queue has something
};

DropQueue& Queue() {
  static DropQueue* queue = new DropQueue();
  return *queue;
}

}  // namespace

void DropLater(PyRef reference) {
  if (!reference) return;
  if (!PyGILState_Check()) return Queue().Push(reference.release());
  reference = PyRef();
  Queue().NoteGarbage(/*clients=*/false);
}

void CollectClientsLater() { Queue().NoteGarbage(/*clients=*/true); }

void DropQueued() { Queue().Drain(); }

}  // namespace parkway::engine
