// One client's session stream. Requests are read one at a time: each is handed to the dispatcher in a task of the core,
// which runs on the polling thread itself when the core is idle, and the next is read when the task is done, unless the
// session is out of credit. Replies are written by whoever makes them, the awaited ones first.
//
// Replies that nobody waits for are kept until limits::kRepliesPerFlush of them have gathered or limits::kReplyFlush
// has passed, and then go out together. Clients take replies in any order.
//
// The session ends when the stream does, whether the client said so, died or vanished.
#pragma once

#include <deque>
#include <memory>
#include <mutex>

#include "proxy/dispatcher.h"
#include "proxy/grpc_op.h"
#include "proxy/reply.h"
#include "proxy/service_context.h"

namespace parkway::proxy {

class SessionStream : public ReplySink, public Flushable, public std::enable_shared_from_this<SessionStream> {
 public:
  // Waits for the next client; each one that comes is followed by another wait.
  static void Accept(ServiceContext& context);
  explicit SessionStream(ServiceContext& context) : counted_(context), context_(context), stream_(&grpc_) {}

  // Any thread.
  void Send(std::unique_ptr<xla::ifrt::proxy::IfrtResponse> response, bool awaited) override;
  void Flush() override;

 private:
  void OnAccepted(bool ok);
  void OnRead(bool ok);
  void OnWritten(bool ok);
  void OnFinished(bool /*ok*/) {}
  void OnDone(bool ok);

  absl::Status CheckMetadata() const;
  void Open();                                                           // in a task
  void Handle();                                                         // in a task
  void ReadNext();                                                       // any thread
  void End();                                                            // any thread
  void Pump();                                                           // under mutex_
  void MaybeFinish();                                                    // under mutex_
  size_t queued() const { return awaited_.size() + unawaited_.size(); }  // under mutex_
  void Refuse(const absl::Status& why);

  Counted counted_;
  ServiceContext& context_;
  grpc::ServerContext grpc_;
  grpc::ServerAsyncReaderWriter<xla::ifrt::proxy::IfrtResponse, xla::ifrt::proxy::IfrtRequest> stream_;
  xla::ifrt::proxy::IfrtRequest request_;   // of whoever reads or handles it
  std::unique_ptr<Dispatcher> dispatcher_;  // only in tasks
  uint64_t session_id_ = 0;                 // only in tasks
  std::string peer_;                        // for messages

  std::mutex mutex_;
  std::deque<std::unique_ptr<xla::ifrt::proxy::IfrtResponse>> awaited_;
  std::deque<std::unique_ptr<xla::ifrt::proxy::IfrtResponse>> unawaited_;
  bool flush_ = false;      // the unawaited are on their way
  bool flush_set_ = false;  // they will be
  bool writing_ = false;
  bool reading_ = false;
  bool read_later_ = false;  // as soon as replies have gone out
  bool ended_ = false;       // nothing is read or written any more
  bool finished_ = false;
  absl::Status end_status_;

  Op<SessionStream, &SessionStream::OnAccepted> accepted_op_;
  Op<SessionStream, &SessionStream::OnRead> read_op_;
  Op<SessionStream, &SessionStream::OnWritten> written_op_;
  Op<SessionStream, &SessionStream::OnFinished> finished_op_;
  Op<SessionStream, &SessionStream::OnDone> done_op_;
};

}  // namespace parkway::proxy
