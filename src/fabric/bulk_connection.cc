#include "fabric/bulk_connection.h"

#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/limits.h"
#include "base/status.h"

namespace parkway::fabric {
namespace {

// Reads or writes of one connection before the others have their turn.
constexpr int kTurns = 8;
// Payloads that are text: a path, a machine, a message.
constexpr size_t kMaxText = 16 << 10;

using Descriptor = asio::posix::stream_descriptor;

bool IsData(BulkKind kind) { return kind == BulkKind::kStart || kind == BulkKind::kChunk; }

bool WouldBlock(int error) { return error == EAGAIN || error == EWOULDBLOCK; }

// What thrown-away bytes are read into.
uint8_t* Scratch() {
  static thread_local std::array<uint8_t, 64 << 10> scratch;
  return scratch.data();
}
constexpr size_t kScratchBytes = 64 << 10;

}  // namespace

BulkConnection::BulkConnection(std::shared_ptr<Loop> loop, UniqueFd fd, std::string peer, std::shared_ptr<void> slot)
    : loop_(std::move(loop)),
      fd_(std::move(fd)),
      peer_(std::move(peer)),
      slot_(std::move(slot)),
      descriptor_(loop_->io()) {}

BulkConnection::~BulkConnection() {
  if (descriptor_.is_open()) descriptor_.release();
}

void BulkConnection::Start(Handler* handler) {
  handler_ = handler;
  asio::error_code error;
  descriptor_.assign(fd_.get(), error);
  if (error) return Fail(absl::UnavailableError(error.message()));
  WaitReadable();
}

void BulkConnection::Close() {
  handler_ = nullptr;
  if (descriptor_.is_open()) descriptor_.release();
  fd_ = UniqueFd();
  messages_.clear();
  streams_.clear();
  unit_ = Unit();
  has_unit_ = false;
}

void BulkConnection::Fail(absl::Status why) {
  Handler* handler = std::exchange(handler_, nullptr);
  Close();
  if (handler) handler->OnClosed(std::move(why));
}

// ---- Writing ----

void BulkConnection::Send(BulkHeader header, std::string payload) {
  if (!handler_) return;
  if (payload.size() > kMaxText) payload.resize(kMaxText);
  Unit& unit = messages_.emplace_back();
  unit.header = header;
  unit.header.length = payload.size();
  unit.text = std::move(payload);
  SchedulePump();
}

void BulkConnection::Stream(uint64_t tag, Bytes bytes) {
  if (!handler_) return;
  streams_.push_back({tag, std::move(bytes)});
  SchedulePump();
}

void BulkConnection::StopStream(uint64_t tag) {
  std::erase_if(streams_, [tag](const OutStream& stream) { return stream.tag == tag; });
}

bool BulkConnection::Stalled(absl::Time now, absl::Duration limit) const {
  return writing_ && now - last_write_ > limit;
}

// Not at once: the caller may be inside the handler of a message.
void BulkConnection::SchedulePump() {
  if (std::exchange(writing_, true)) return;
  last_write_ = absl::Now();
  loop_->Post([self = shared_from_this()] { self->Pump(); });
}

// Chooses what to write next: messages before streams, one chunk of each stream in turn.
bool BulkConnection::NextUnit() {
  if (has_unit_) return true;
  unit_ = Unit();
  if (!messages_.empty()) {
    unit_ = std::move(messages_.front());
    messages_.pop_front();
    unit_.data = unit_.text.data();
    return has_unit_ = true;
  }
  if (streams_.empty()) return false;
  OutStream stream = std::move(streams_.front());
  streams_.pop_front();
  unit_.header.kind = stream.started ? BulkKind::kChunk : BulkKind::kStart;
  unit_.header.tag = stream.tag;
  unit_.header.value = stream.bytes.size;
  unit_.header.length = std::min(limits::kBulkChunkBytes, stream.bytes.size - stream.sent);
  unit_.bytes = stream.bytes;
  unit_.data = reinterpret_cast<const char*>(stream.bytes.data) + stream.sent;
  stream.started = true;
  stream.sent += unit_.header.length;
  if (stream.sent < stream.bytes.size) streams_.push_back(std::move(stream));
  return has_unit_ = true;
}

void BulkConnection::Pump() {
  for (int turn = 0; turn < kTurns; ++turn) {
    if (!handler_ || !NextUnit()) {
      writing_ = false;
      return;
    }
    const Progress progress = WriteOnce();
    if (progress == Progress::kBlocked) return WaitWritable();
    if (progress == Progress::kFailed) return;
  }
  loop_->Post([self = shared_from_this()] { self->Pump(); });
}

BulkConnection::Progress BulkConnection::WriteOnce() {
  std::array<iovec, 2> parts;
  size_t count = 0;
  if (unit_.written < sizeof(BulkHeader)) {
    parts[count++] = {reinterpret_cast<char*>(&unit_.header) + unit_.written, sizeof(BulkHeader) - unit_.written};
  }
  const size_t skip = unit_.written - std::min(unit_.written, sizeof(BulkHeader));
  if (unit_.header.length > skip) parts[count++] = {const_cast<char*>(unit_.data) + skip, unit_.header.length - skip};
  msghdr message{};
  message.msg_iov = parts.data();
  message.msg_iovlen = count;
  const ssize_t n = sendmsg(fd_.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
  if (n < 0 && errno == EINTR) return Progress::kMore;
  if (n < 0 && WouldBlock(errno)) return Progress::kBlocked;
  if (n < 0) {
    Fail(absl::UnavailableError(WithErrno("lost the connection", errno)));
    return Progress::kFailed;
  }
  last_write_ = absl::Now();
  unit_.written += static_cast<size_t>(n);
  if (unit_.written == unit_.size()) has_unit_ = false;
  return Progress::kMore;
}

void BulkConnection::WaitWritable() {
  descriptor_.async_wait(Descriptor::wait_write, [self = shared_from_this()](const asio::error_code& error) {
    if (!error) self->Pump();
  });
}

// ---- Reading ----

void BulkConnection::WaitReadable() {
  descriptor_.async_wait(Descriptor::wait_read, [self = shared_from_this()](const asio::error_code& error) {
    if (!error) self->OnReadable();
  });
}

void BulkConnection::OnReadable() {
  for (int turn = 0; turn < kTurns && handler_; ++turn) {
    const Progress progress = ReadOnce();
    if (progress == Progress::kFailed) return;
    if (progress == Progress::kBlocked) return WaitReadable();
  }
  if (handler_) loop_->Post([self = shared_from_this()] { self->OnReadable(); });
}

// Where the next bytes belong: the rest of the header, or of the payload.
iovec BulkConnection::Destination() {
  if (header_read_ < sizeof(header_)) {
    return {reinterpret_cast<char*>(&header_) + header_read_, sizeof(header_) - header_read_};
  }
  const size_t left = header_.length - payload_read_;
  if (discard_) return {Scratch(), std::min(left, kScratchBytes)};
  return {place_ + payload_read_, left};
}

BulkConnection::Progress BulkConnection::ReadOnce() {
  const iovec to = Destination();
  const ssize_t n = recv(fd_.get(), to.iov_base, to.iov_len, MSG_DONTWAIT);
  if (n < 0 && errno == EINTR) return Progress::kMore;
  if (n < 0 && WouldBlock(errno)) return Progress::kBlocked;
  if (n <= 0) {
    Fail(absl::UnavailableError(n < 0 ? WithErrno("lost the connection", errno) : "the peer closed the connection"));
    return Progress::kFailed;
  }
  absl::Status status;
  if (header_read_ < sizeof(header_)) {
    header_read_ += static_cast<size_t>(n);
    if (header_read_ == sizeof(header_)) status = TakeHeader();
  } else {
    payload_read_ += static_cast<size_t>(n);
  }
  if (status.ok() && handler_ && header_read_ == sizeof(header_) && payload_read_ == header_.length)
    status = TakePayload();
  if (!status.ok()) Fail(std::move(status));
  return handler_ ? Progress::kMore : Progress::kFailed;
}

absl::Status BulkConnection::TakeHeader() {
  const bool data = IsData(header_.kind);
  if (header_.magic != BulkHeader::kMagic || header_.length > (data ? limits::kBulkChunkBytes : kMaxText)) {
    return absl::InvalidArgumentError("this is no Parkway process, or one of another version");
  }
  if (data) {
    PARKWAY_ASSIGN_OR_RETURN(place_, handler_->Place(header_));
    discard_ = place_ == nullptr;
  } else {
    text_.resize(header_.length);
    place_ = reinterpret_cast<uint8_t*>(text_.data());
    discard_ = false;
  }
  return absl::OkStatus();
}

void BulkConnection::DropPlace(uint64_t tag) {
  const bool inside = header_read_ == sizeof(header_) && IsData(header_.kind) && header_.tag == tag;
  if (inside) discard_ = true;
}

absl::Status BulkConnection::TakePayload() {
  const BulkHeader header = header_;
  header_read_ = payload_read_ = 0;
  return handler_->OnMessage(header, IsData(header.kind) ? std::string_view() : std::string_view(text_));
}

}  // namespace parkway::fabric
