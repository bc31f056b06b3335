#include "fabric/loop.h"

#include <pthread.h>

#include <future>

namespace parkway::fabric {

Loop::Loop(const std::string& thread_name) : work_(asio::make_work_guard(io_)), thread_([this] { io_.run(); }) {
  pthread_setname_np(thread_.native_handle(), thread_name.substr(0, 15).c_str());
}

Loop::~Loop() { Stop(); }

uint64_t Loop::AtStop(std::function<void()> end) {
  std::unique_lock lock(mutex_);
  if (stopping_) {
    lock.unlock();
    if (OnThread()) {
      end();
    } else {
      Post(std::move(end));
    }
    return 0;
  }
  ends_.emplace(next_end_, std::move(end));
  return next_end_++;
}

void Loop::RemoveAtStop(uint64_t id) {
  std::function<void()> end;  // freed after the lock
  std::lock_guard lock(mutex_);
  auto it = ends_.find(id);
  if (it == ends_.end()) return;
  end = std::move(it->second);
  ends_.erase(it);
}

void Loop::RunSync(const std::function<void()>& task) {
  if (OnThread() || !thread_.joinable()) return task();
  std::promise<void> done;
  Post([&] {
    task();
    done.set_value();
  });
  done.get_future().wait();
}

void Loop::Stop() {
  if (!thread_.joinable()) return;
  Post([this] {
    std::map<uint64_t, std::function<void()>> ends;
    {
      std::lock_guard lock(mutex_);
      stopping_ = true;
      ends.swap(ends_);
    }
    for (auto& [id, end] : ends) end();
    work_.reset();  // run() returns when nothing is left
  });
  thread_.join();
}

}  // namespace parkway::fabric
