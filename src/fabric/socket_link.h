// A link over a socket. The Link that the user holds is a handle on a SocketLink, which lives as long as anything waits
// for the socket. Its reader is the loop's thread or, with own_thread, whoever sits in RunReadLoop.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "fabric/frame_reader.h"
#include "fabric/link.h"
#include "fabric/loop.h"
#include "fabric/socket.h"

namespace parkway::fabric {

class SocketLink : public std::enable_shared_from_this<SocketLink> {
 public:
  // `slot` is kept as long as the link.
  SocketLink(std::shared_ptr<Loop> loop, UniqueFd fd, std::string peer, LinkHandlers handlers,
             std::shared_ptr<void> slot);
  ~SocketLink();

  // A handle for the user. Then Start, on the loop's thread, begins reading.
  std::unique_ptr<Link> MakeHandle();
  void Start();

  void Send(Frame frame);
  void Close(absl::Status why);
  void RunReadLoop();
  // The user's handle is gone: no handler runs once this has returned.
  void Detach();
  const std::string& peer() const { return peer_; }

 private:
  enum class ReadResult { kMore, kDrained, kNothing, kEnded };

  // Writing. `mutex_` is held.
  bool SendNow(const Frame& frame, size_t* sent);
  void DrainQueue();
  void WriteFailed(int error);
  // Writing, on the loop's thread.
  void WaitWritable();
  void OnWritable();

  // Reading, on the reader's thread.
  void WaitReadable();
  void OnReadable();
  ReadResult ReadOnce();
  void DeliverMessages();
  void DeliverClosed();
  bool BeginDelivery();
  void EndDelivery();
  void Finish();

  const std::shared_ptr<Loop> loop_;
  const UniqueFd fd_;
  const std::string peer_;
  const bool own_thread_;
  const std::shared_ptr<void> slot_;
  uint64_t at_stop_ = 0;

  std::mutex mutex_;
  std::atomic<bool> closed_ = false;  // written under mutex_
  absl::Status why_;                  // once closed
  absl::Status write_error_;          // the reader finds what is left to read, then closes with this
  std::deque<Frame> queue_;
  size_t head_sent_ = 0;     // bytes of queue_.front() that the socket has taken, header included
  size_t queued_bytes_ = 0;  // unsent, headers included
  bool waiting_writable_ = false;
  bool detached_ = false;
  bool delivering_ = false;
  std::thread::id deliverer_;
  std::condition_variable delivered_;

  LinkHandlers handlers_;                      // the reader's
  FrameReader frames_;                         // the reader's
  asio::posix::stream_descriptor descriptor_;  // the loop thread's
};

}  // namespace parkway::fabric
