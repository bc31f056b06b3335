#include "proxy/session_stream.h"

#include <glog/logging.h>

#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace parkway::proxy {

namespace wire = xla::ifrt::proxy;

namespace {
constexpr char kMetadataKey[] = "ifrt-proxy-grpc-ifrt-session-metadata-bin";
}  // namespace

void SessionStream::Accept(ServiceContext& context) {
  auto call = std::make_shared<SessionStream>(context);
  call->grpc_.AsyncNotifyWhenDone(call->done_op_.Arm(call));
  context.service.RequestIfrtSession(&call->grpc_, &call->stream_, context.queue, context.queue,
                                     call->accepted_op_.Arm(call));
}

absl::Status SessionStream::CheckMetadata() const {
  auto it = grpc_.client_metadata().find(kMetadataKey);
  wire::GrpcIfrtSessionMetadata metadata;
  if (it == grpc_.client_metadata().end() ||
      !metadata.ParseFromArray(it->second.data(), static_cast<int>(it->second.size()))) {
    return absl::InvalidArgumentError(absl::StrCat("the session has no readable metadata ", kMetadataKey));
  }
  return CheckVersion(context_.versions,
                      {metadata.version().protocol_version(), metadata.version().ifrt_serdes_version_number()});
}

void SessionStream::OnAccepted(bool ok) {
  if (!ok) {
    // The server is going down and this call never was; its done tag never comes.
    done_op_.Arm(nullptr);
    return;
  }
  Accept(context_);
  peer_ = grpc_.peer();
  if (absl::Status status = CheckMetadata(); !status.ok()) return Refuse(status);
  context_.executor->Post([self = shared_from_this()] { self->Open(); });
}

void SessionStream::Refuse(const absl::Status& why) {
  LOG(WARNING) << "refused a client at " << peer_ << ": " << why.message();
  std::lock_guard lock(mutex_);
  ended_ = true;
  end_status_ = why;
  MaybeFinish();
}

void SessionStream::Open() {
  {
    std::lock_guard lock(mutex_);
    if (ended_) return;
  }
  auto opened = context_.buffers.Open();
  if (!opened.ok()) return Refuse(opened.status());
  session_id_ = opened->first;
  dispatcher_ = std::make_unique<Dispatcher>(Dispatcher::Options{
      .executor = context_.executor,
      .topology = &context_.core->topology(),
      .session_id = session_id_,
      .buffers = opened->second,
      .session = context_.core->OpenSession(peer_),
      .sink = this,
  });
  ++context_.sessions;
  LOG(INFO) << "session of " << peer_ << " opened";
  ReadNext();
}

void SessionStream::OnRead(bool ok) {
  {
    std::lock_guard lock(mutex_);
    reading_ = false;
    if (!ok) {
      ended_ = true;
      if (writing_) grpc_.TryCancel();  // a client that reads no replies must not keep the stream
    }
    if (ended_) MaybeFinish();
  }
  if (!ok) return End();
  context_.executor->Post([self = shared_from_this()] { self->Handle(); });
}

void SessionStream::Handle() {
  if (dispatcher_ == nullptr) return;  // the client is gone
  dispatcher_->Handle(request_);
  if (dispatcher_->session().HasCredit()) return ReadNext();
  dispatcher_->session().OnCredit([weak = weak_from_this()] {
    if (auto self = weak.lock()) self->ReadNext();
  });
}

void SessionStream::ReadNext() {
  std::lock_guard lock(mutex_);
  if (ended_ || reading_) return;
  read_later_ = queued() >= limits::kMaxQueuedReplies;  // a client that reads no replies
  if (read_later_) return;
  reading_ = true;
  stream_.Read(&request_, read_op_.Arm(shared_from_this()));
}

void SessionStream::Send(std::unique_ptr<wire::IfrtResponse> response, bool awaited) {
  std::lock_guard lock(mutex_);
  if (ended_) return;
  (awaited ? awaited_ : unawaited_).push_back(std::move(response));
  Pump();
}

void SessionStream::Pump() {
  if (writing_ || ended_ || queued() == 0) return;
  const bool awaited = !awaited_.empty();
  if (!awaited && !flush_ && unawaited_.size() < limits::kRepliesPerFlush) {
    if (!std::exchange(flush_set_, true)) context_.flushes.Add(shared_from_this());
    return;
  }
  flush_ = flush_ || !awaited;
  auto& replies = awaited ? awaited_ : unawaited_;
  std::unique_ptr<wire::IfrtResponse> reply = std::move(replies.front());
  replies.pop_front();
  grpc::WriteOptions options;
  if (!replies.empty() && (awaited || flush_)) options.set_buffer_hint();  // the next one takes it along
  flush_ = flush_ && !unawaited_.empty();
  writing_ = true;
  stream_.Write(*reply, options, written_op_.Arm(shared_from_this()));
}

void SessionStream::OnWritten(bool ok) {
  bool read = false;
  {
    std::lock_guard lock(mutex_);
    writing_ = false;
    if (!ok) ended_ = true;
    if (ended_) {
      MaybeFinish();
    } else {
      Pump();
      read = read_later_ && queued() < limits::kMaxQueuedReplies / 2;
    }
  }
  if (!ok) return End();
  if (read) ReadNext();
}

void SessionStream::Flush() {
  std::lock_guard lock(mutex_);
  flush_set_ = false;
  flush_ = !unawaited_.empty();
  Pump();
}

void SessionStream::OnDone(bool /*ok*/) {
  {
    std::lock_guard lock(mutex_);
    ended_ = true;
    MaybeFinish();
  }
  End();
}

void SessionStream::MaybeFinish() {
  if (finished_ || writing_ || reading_) return;
  finished_ = true;
  stream_.Finish(ToGrpc(end_status_), finished_op_.Arm(shared_from_this()));
}

void SessionStream::End() {
  context_.executor->Post([self = shared_from_this()] {
    if (self->dispatcher_ == nullptr) return;
    LOG(INFO) << "session of " << self->peer_ << " ended";
    self->context_.buffers.Close(self->session_id_, absl::CancelledError("the client's session ended"));
    self->dispatcher_ = nullptr;
    --self->context_.sessions;
  });
}

}  // namespace parkway::proxy
