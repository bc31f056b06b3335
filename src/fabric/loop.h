// One thread with an Asio event loop: waits for sockets and timers and runs what is posted. Everything that hangs on it
// (links, listeners, connection attempts) holds a reference, registers how to end it, and so is ended before the thread
// is.
//
// Included by .cc files of this folder only: Asio is heavy.
#pragma once

// First: Asio looks at what the standard library has defined so far to choose how it allocates, and must see the same
// in every file.
#include <cstdlib>

#ifndef ASIO_STANDALONE
#define ASIO_STANDALONE
#endif
#include <asio.hpp>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

namespace parkway::fabric {

class Loop {
 public:
  explicit Loop(const std::string& thread_name);
  ~Loop();
  Loop(const Loop&) = delete;
  Loop& operator=(const Loop&) = delete;

  asio::io_context& io() { return io_; }

  // Runs `task` on the loop's thread, later. Any thread.
  template <typename T>
  void Post(T&& task) {
    asio::post(io_, std::forward<T>(task));
  }
  bool OnThread() const { return std::this_thread::get_id() == thread_.get_id(); }

  // `end` runs on the loop's thread when the loop is stopped, unless it was removed before; when that has begun, at
  // once (on that thread) or soon. It must leave nothing waiting on the loop. Any thread.
  uint64_t AtStop(std::function<void()> end);
  void RemoveAtStop(uint64_t id);

  // Runs `task` on the loop's thread and waits for it; at once when this is that thread, or the loop has stopped.
  void RunSync(const std::function<void()>& task);

  // Runs every end, waits until nothing is left to do, and joins the thread. Not from the loop's own thread.
  void Stop();

 private:
  asio::io_context io_{1};
  asio::executor_work_guard<asio::io_context::executor_type> work_;
  std::mutex mutex_;
  std::map<uint64_t, std::function<void()>> ends_;
  uint64_t next_end_ = 1;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace parkway::fabric
