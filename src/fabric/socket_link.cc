#include "fabric/socket_link.h"

#include <endian.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/limits.h"

namespace parkway::fabric {
namespace {

// Messages that one system call sends.
constexpr size_t kFramesPerWrite = 64;
// Reads of one link before the others have their turn.
constexpr int kReadsPerTurn = 16;

class Handle : public Link {
 public:
  explicit Handle(std::shared_ptr<SocketLink> link) : link_(std::move(link)) {}
  ~Handle() override { link_->Detach(); }
  void Send(Frame frame) override { link_->Send(std::move(frame)); }
  void Close(absl::Status why) override { link_->Close(std::move(why)); }
  void RunReadLoop() override {
    const std::shared_ptr<SocketLink> keep = link_;  // a handler may destroy this handle
    keep->RunReadLoop();
  }
  std::string peer() const override { return link_->peer(); }

 private:
  const std::shared_ptr<SocketLink> link_;
};

// Header and body of up to kFramesPerWrite messages, as one vector of buffers.
class WriteVector {
 public:
  // Leaves out the first `skip` bytes of the message.
  void Add(const std::string& body, size_t skip) {
    headers_[count_] = htole32(static_cast<uint32_t>(body.size()));
    if (skip < kFrameHeaderBytes) {
      AddPart(reinterpret_cast<char*>(&headers_[count_]) + skip, kFrameHeaderBytes - skip);
      skip = kFrameHeaderBytes;
    }
    AddPart(const_cast<char*>(body.data()) + (skip - kFrameHeaderBytes), body.size() + kFrameHeaderBytes - skip);
    ++count_;
  }
  bool full() const { return count_ == kFramesPerWrite; }

  ssize_t Send(int fd) {
    msghdr message{};
    message.msg_iov = parts_.data();
    message.msg_iovlen = part_count_;
    return sendmsg(fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
  }

 private:
  void AddPart(char* data, size_t size) { parts_[part_count_++] = {data, size}; }

  std::array<uint32_t, kFramesPerWrite> headers_;
  std::array<iovec, 2 * kFramesPerWrite> parts_;
  size_t count_ = 0;
  size_t part_count_ = 0;
};

}  // namespace

SocketLink::SocketLink(std::shared_ptr<Loop> loop, UniqueFd fd, std::string peer, LinkHandlers handlers,
                       std::shared_ptr<void> slot)
    : loop_(std::move(loop)),
      fd_(std::move(fd)),
      peer_(std::move(peer)),
      own_thread_(handlers.own_thread),
      slot_(std::move(slot)),
      handlers_(std::move(handlers)),
      descriptor_(loop_->io()) {}

SocketLink::~SocketLink() {
  if (descriptor_.is_open()) descriptor_.release();  // fd_ closes the socket
}

std::unique_ptr<Link> SocketLink::MakeHandle() {
  at_stop_ = loop_->AtStop([weak = weak_from_this()] {
    if (auto self = weak.lock()) self->Close(absl::CancelledError("this process closes its links"));
  });
  // A new socket has room for these few bytes; if it has failed already, the reader finds that.
  [[maybe_unused]] const ssize_t sent = send(fd_.get(), kLinkPreface.data(), kLinkPreface.size(), MSG_NOSIGNAL);
  return std::make_unique<Handle>(shared_from_this());
}

void SocketLink::Start() {
  if (own_thread_ || closed_) return;
  asio::error_code error;
  descriptor_.assign(fd_.get(), error);
  if (error) return Close(absl::UnavailableError(absl::StrCat("can't wait for ", peer_, ": ", error.message())));
  WaitReadable();
}

// ---- Writing ----

void SocketLink::Send(Frame frame) {
  const size_t size = frame ? frame->size() : 0;
  if (size == 0 || size > limits::kMaxFrameBytes) {
    return Close(absl::InvalidArgumentError(absl::StrCat("a message of ", size, " bytes was to be sent to ", peer_,
                                                         "; it takes 1 to ", limits::kMaxFrameBytes)));
  }
  std::unique_lock lock(mutex_);
  if (closed_ || !write_error_.ok()) return;
  size_t sent = 0;
  if (queue_.empty() && SendNow(frame, &sent)) return;
  const size_t unsent = size + kFrameHeaderBytes - sent;
  if (!queue_.empty() && queued_bytes_ + unsent > limits::kLinkQueueBytes) {
    const size_t queued = queued_bytes_;
    lock.unlock();
    return Close(absl::ResourceExhaustedError(
        absl::StrCat(peer_, " does not read what it is sent: ", queued, " bytes are waiting")));
  }
  if (queue_.empty()) head_sent_ = sent;
  queue_.push_back(std::move(frame));
  queued_bytes_ += unsent;
  if (std::exchange(waiting_writable_, true)) return;
  lock.unlock();
  loop_->Post([self = shared_from_this()] { self->WaitWritable(); });
}

// True when nothing is left to do for this message; else `sent` says how much of it the socket took.
bool SocketLink::SendNow(const Frame& frame, size_t* sent) {
  WriteVector vector;
  vector.Add(*frame, 0);
  const ssize_t n = vector.Send(fd_.get());
  if (n < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR) {
    WriteFailed(errno);
    return true;
  }
  *sent = n < 0 ? 0 : static_cast<size_t>(n);
  return *sent == frame->size() + kFrameHeaderBytes;
}

void SocketLink::WriteFailed(int error) {
  write_error_ = absl::UnavailableError(WithErrno(absl::StrCat("lost the connection to ", peer_), error));
  queue_.clear();
  queued_bytes_ = 0;
  shutdown(fd_.get(), SHUT_RDWR);  // the reader still gets what has come
}

void SocketLink::DrainQueue() {
  while (!queue_.empty()) {
    WriteVector vector;
    size_t skip = head_sent_;
    for (auto it = queue_.begin(); it != queue_.end() && !vector.full(); ++it, skip = 0) vector.Add(**it, skip);
    const ssize_t n = vector.Send(fd_.get());
    if (n < 0) {
      if (errno == EINTR) continue;
      if (errno != EAGAIN && errno != EWOULDBLOCK) WriteFailed(errno);
      return;
    }
    queued_bytes_ -= static_cast<size_t>(n);
    head_sent_ += static_cast<size_t>(n);
    while (!queue_.empty() && head_sent_ >= queue_.front()->size() + kFrameHeaderBytes) {
      head_sent_ -= queue_.front()->size() + kFrameHeaderBytes;
      queue_.pop_front();
    }
  }
}

void SocketLink::WaitWritable() {
  asio::error_code error;
  // A link with a reader of its own is known to the loop only while it has something to write: else each message that
  // comes would wake the loop too.
  if (!descriptor_.is_open() && !closed_) descriptor_.assign(fd_.get(), error);
  if (closed_ || error) return Finish();
  descriptor_.async_wait(asio::posix::stream_descriptor::wait_write,
                         [self = shared_from_this()](const asio::error_code& failed) {
                           if (!failed) self->OnWritable();
                         });
}

void SocketLink::OnWritable() {
  bool more;
  {
    std::lock_guard lock(mutex_);
    if (!closed_) DrainQueue();
    more = !closed_ && !queue_.empty();
    waiting_writable_ = more;
  }
  if (more) return WaitWritable();
  if (own_thread_ && descriptor_.is_open()) descriptor_.release();
}

// ---- Reading ----

void SocketLink::WaitReadable() {
  descriptor_.async_wait(asio::posix::stream_descriptor::wait_read,
                         [self = shared_from_this()](const asio::error_code& failed) {
                           if (!failed) self->OnReadable();
                         });
}

void SocketLink::OnReadable() {
  if (!BeginDelivery()) return;
  ReadResult result = ReadResult::kMore;
  for (int i = 0; i < kReadsPerTurn && result == ReadResult::kMore; ++i) result = ReadOnce();
  EndDelivery();
  if (closed_ || result == ReadResult::kEnded) return;
  if (result == ReadResult::kDrained || result == ReadResult::kNothing) return WaitReadable();
  loop_->Post([self = shared_from_this()] { self->OnReadable(); });
}

void SocketLink::RunReadLoop() {
  if (BeginDelivery()) {
    ReadResult result = ReadResult::kMore;
    while (!closed_ && result != ReadResult::kEnded) {
      result = ReadOnce();
      if (result == ReadResult::kMore || result == ReadResult::kEnded) continue;
      // Not a blocking recv: on a unix socket that is woken too whenever the peer takes what we sent.
      pollfd readable{.fd = fd_.get(), .events = POLLIN, .revents = 0};
      poll(&readable, 1, -1);
    }
    EndDelivery();
  }
  DeliverClosed();
}

// Reads what is there and delivers the messages that are whole.
SocketLink::ReadResult SocketLink::ReadOnce() {
  const FrameReader::Space space = frames_.Prepare();
  if (space.data == nullptr) {
    Close(absl::ResourceExhaustedError(absl::StrCat("no memory for a message from ", peer_)));
    return ReadResult::kEnded;
  }
  const ssize_t n = recv(fd_.get(), space.data, space.size, MSG_DONTWAIT);
  if (n > 0) {
    frames_.Commit(static_cast<size_t>(n));
    DeliverMessages();
    return static_cast<size_t>(n) == space.size ? ReadResult::kMore : ReadResult::kDrained;
  }
  if (n < 0 && errno == EINTR) return ReadResult::kMore;
  if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return ReadResult::kNothing;
  absl::Status why = n < 0 ? absl::UnavailableError(WithErrno(absl::StrCat("lost the connection to ", peer_), errno))
                           : absl::UnavailableError(absl::StrCat(peer_, " closed the connection",
                                                                 frames_.holds_part() ? " inside a message" : ""));
  {
    std::lock_guard lock(mutex_);
    if (!write_error_.ok()) why = write_error_;
  }
  Close(std::move(why));
  return ReadResult::kEnded;
}

void SocketLink::DeliverMessages() {
  while (!closed_) {
    const auto message = frames_.Next();
    if (!message.ok()) {
      return Close(absl::InvalidArgumentError(
          absl::StrCat("the connection from ", peer_, " was closed: ", std::string(message.status().message()))));
    }
    if (!message->has_value()) return;
    if (handlers_.on_message) handlers_.on_message(**message);
  }
}

// Handlers run between BeginDelivery and EndDelivery; Detach waits for that. False: the user no longer wants to hear.
bool SocketLink::BeginDelivery() {
  std::lock_guard lock(mutex_);
  if (detached_) return false;
  delivering_ = true;
  deliverer_ = std::this_thread::get_id();
  return true;
}

void SocketLink::EndDelivery() {
  LinkHandlers dropped;
  std::lock_guard lock(mutex_);
  delivering_ = false;
  if (detached_) dropped = std::move(handlers_);
  delivered_.notify_all();
}

void SocketLink::DeliverClosed() {
  if (!BeginDelivery()) return;
  absl::Status why;
  {
    std::lock_guard lock(mutex_);
    why = why_;
  }
  if (handlers_.on_closed) handlers_.on_closed(std::move(why));
  handlers_ = LinkHandlers();  // what they hold may hold the link
  EndDelivery();
}

// ---- The end ----

void SocketLink::Close(absl::Status why) {
  std::deque<Frame> dropped;
  {
    std::lock_guard lock(mutex_);
    if (closed_) return;
    why_ = std::move(why);
    closed_ = true;
    dropped.swap(queue_);
    queued_bytes_ = 0;
    shutdown(fd_.get(), SHUT_RDWR);  // wakes a blocked reader
  }
  loop_->RemoveAtStop(at_stop_);
  loop_->Post([self = shared_from_this()] {
    self->Finish();
    if (!self->own_thread_) self->DeliverClosed();
  });
}

void SocketLink::Finish() {
  if (descriptor_.is_open()) descriptor_.release();
}

void SocketLink::Detach() {
  LinkHandlers dropped;
  {
    std::unique_lock lock(mutex_);
    detached_ = true;
    lock.unlock();
    Close(absl::CancelledError("the link was given up"));
    lock.lock();
    // A handler that destroys its own link is not waited for; its EndDelivery drops the handlers.
    if (delivering_ && deliverer_ == std::this_thread::get_id()) return;
    delivered_.wait(lock, [this] { return !delivering_; });
    dropped = std::move(handlers_);
  }
}

}  // namespace parkway::fabric
