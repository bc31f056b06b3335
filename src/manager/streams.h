// gRPC streams of the Manager service, both ends: messages go out without blocking, come in one at a time as tasks of
// an Executor, and the end of a stream is one more task. Only .cc files include this (gRPC's headers are large).
#pragma once

#include <grpcpp/grpcpp.h>

#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "base/completion_op.h"
#include "base/executor.h"
#include "base/limits.h"
#include "glog/logging.h"
#include "manager/rpc.h"
#include "proto/parkway/manager.grpc.pb.h"

namespace parkway::manager {

// The server's end of one stream. It deletes itself when gRPC is done with it; `gone` comes just before.
template <class In, class Out>
class ServerStream : public grpc::ServerBidiReactor<In, Out> {
 public:
  struct Handlers {
    std::function<void(In message)> on_message;  // any thread; Next() asks for one more
    std::function<void()> on_end;                // the peer sends no more; comes once
    std::function<void()> gone;
  };

  ServerStream(grpc::CallbackServerContext* context, Handlers handlers)
      : context_(context), handlers_(std::move(handlers)) {}

  void Next() {
    std::lock_guard lock(mutex_);
    if (!finished_) this->StartRead(&in_);
  }

  void Send(const Out& message) {
    std::lock_guard lock(mutex_);
    if (ending_) return;
    if (out_.size() >= limits::kManagerStreamQueue) {
      LOG(WARNING) << "A peer of the manager reads nothing; its connection is cut.";
      context_->TryCancel();
      return;
    }
    out_.push_back(message);
    if (out_.size() == 1) this->StartWrite(&out_.front());
  }

  // What was sent before still goes out.
  void End(const grpc::Status& status) {
    std::lock_guard lock(mutex_);
    if (ending_) return;
    ending_ = true;
    status_ = status;
    if (out_.empty()) FinishLocked();
  }

  void Cancel() { context_->TryCancel(); }

  void OnReadDone(bool ok) override {
    if (ok) {
      handlers_.on_message(std::move(in_));
      return;
    }
    handlers_.on_end();
    End(grpc::Status::OK);
  }

  void OnWriteDone(bool ok) override {
    std::lock_guard lock(mutex_);
    out_.pop_front();
    if (!ok) out_.clear();
    if (!out_.empty()) {
      this->StartWrite(&out_.front());
    } else if (ending_) {
      FinishLocked();
    }
  }

  void OnDone() override {
    handlers_.gone();
    delete this;
  }

 private:
  void FinishLocked() {
    if (!std::exchange(finished_, true)) this->Finish(status_);
  }

  grpc::CallbackServerContext* context_;
  Handlers handlers_;
  In in_;
  std::mutex mutex_;
  std::deque<Out> out_;  // the front one is being written
  bool ending_ = false;
  bool finished_ = false;
  grpc::Status status_;
};

// The client's end: a stream to the manager that is made again for ever, until it is told to stop. Everything, also
// destruction, happens in tasks of the executor. gRPC may hold a connection's remains for longer, which touch neither
// the owner nor the executor any more.
//
// It shares the completion queue of its process: each further one, and gRPC's callbacks, would bring threads that poll
// the same sockets and hand each other's events on (measured: a fifth more latency for a proxy's clients).
template <class Out, class In>
class ReconnectingStream {
 public:
  struct Handlers {
    std::function<Out()> hello;  // the first message of each connection
    std::function<void(const In& message)> on_message;
    // A connection ended or could not be made; returns how long to wait before the next try.
    std::function<absl::Duration(const absl::Status& why)> on_lost;
  };
  using Stream = grpc::ClientAsyncReaderWriter<Out, In>;
  using Opener =
      std::function<std::unique_ptr<Stream>(Manager::Stub&, grpc::ClientContext*, grpc::CompletionQueue*, void* tag)>;

  ReconnectingStream(Executor* executor, grpc::CompletionQueue* queue, const std::string& address, Opener opener,
                     Handlers handlers)
      : executor_(executor),
        queue_(queue),
        stub_(Manager::NewStub(ManagerChannel(address))),
        opener_(std::move(opener)),
        handlers_(std::move(handlers)) {}

  ~ReconnectingStream() {
    executor_->Cancel(retry_);
    if (attempt_) attempt_->Abandon();
  }

  void Connect() {
    attempt_ = std::make_shared<Attempt>(this);
    attempt_->Open(attempt_, handlers_.hello());
  }

  // Has the manager answered on this connection?
  bool connected() const { return connected_; }

  // Dropped when no connection is there or being made: the next hello says all that counts.
  void Send(const Out& message) {
    if (attempt_) attempt_->Send(message);
  }

  // What was sent still goes out; no new connection is made. on_lost comes when the manager has ended the stream.
  void Close() {
    executor_->Cancel(retry_);
    closing_ = true;
    if (attempt_) attempt_->WritesDone();
  }

 private:
  class Attempt : public std::enable_shared_from_this<Attempt> {
   public:
    explicit Attempt(ReconnectingStream* owner) : owner_(owner), executor_(owner->executor_) {}

    void Open(const std::shared_ptr<Attempt>& self, Out hello) {
      std::lock_guard lock(mutex_);
      out_.push_back(std::move(hello));
      stream_ = owner_->opener_(*owner_->stub_, &context_, owner_->queue_, started_.Arm(self));
    }

    void Send(const Out& message) {
      std::lock_guard lock(mutex_);
      if (ended_ || no_more_) return;
      if (out_.size() >= limits::kManagerStreamQueue) {
        context_.TryCancel();
        return;
      }
      out_.push_back(message);
      if (open_ && out_.size() == 1) WriteLocked();
    }

    void WritesDone() {
      std::lock_guard lock(mutex_);
      if (ended_ || std::exchange(no_more_, true)) return;
      if (open_ && out_.empty()) stream_->WritesDone(writes_done_.Arm(this->shared_from_this()));
    }

    // The owner goes: no task of this attempt runs any more, and nothing new is begun on the queue, which may go too.
    void Abandon() {
      {
        std::lock_guard lock(gate_);
        executor_ = nullptr;
      }
      owner_ = nullptr;
      std::lock_guard lock(mutex_);
      if (!std::exchange(ended_, true)) context_.TryCancel();
    }

   private:
    void OnStarted(bool ok) {
      std::lock_guard lock(mutex_);
      if (ended_) return;
      if (!ok) return FinishLocked();
      open_ = true;
      stream_->Read(&in_, read_.Arm(this->shared_from_this()));
      WriteLocked();
    }

    void OnRead(bool ok) {
      if (!ok) {
        std::lock_guard lock(mutex_);
        return FinishLocked();
      }
      Post([self = this->shared_from_this()] {
        self->owner_->connected_ = true;
        self->owner_->handlers_.on_message(self->in_);
        std::lock_guard lock(self->mutex_);
        if (!self->ended_) self->stream_->Read(&self->in_, self->read_.Arm(self));
      });
    }

    void OnWritten(bool ok) {
      std::lock_guard lock(mutex_);
      out_.pop_front();
      if (!ok) out_.clear();
      if (ended_) return;
      if (!out_.empty()) {
        WriteLocked();
      } else if (no_more_ && ok) {
        stream_->WritesDone(writes_done_.Arm(this->shared_from_this()));
      }
    }

    void OnWritesDone(bool /*ok*/) {}

    void OnFinished(bool /*ok*/) {
      Post([self = this->shared_from_this()] { self->owner_->OnLost(self, FromGrpc(self->status_)); });
    }

    void WriteLocked() { stream_->Write(out_.front(), write_.Arm(this->shared_from_this())); }
    void FinishLocked() {
      if (std::exchange(ended_, true)) return;
      stream_->Finish(&status_, finished_.Arm(this->shared_from_this()));
    }

    // Runs it in the executor, and never in this thread, which holds locks, if the owner is still there.
    void Post(std::function<void()> task) {
      std::lock_guard lock(gate_);
      if (executor_ == nullptr) return;
      executor_->After(absl::ZeroDuration(), [self = this->shared_from_this(), task = std::move(task)] {
        if (self->owner_ != nullptr) task();
      });
    }

    ReconnectingStream* owner_;  // touched by the executor's tasks alone
    std::mutex gate_;
    Executor* executor_;  // guarded by gate_; null when the owner is gone
    grpc::ClientContext context_;
    In in_;
    grpc::Status status_;
    std::mutex mutex_;
    std::unique_ptr<Stream> stream_;
    std::deque<Out> out_;  // the front one is being written
    bool open_ = false;
    bool ended_ = false;
    bool no_more_ = false;
    CompletionOp<Attempt, &Attempt::OnStarted> started_;
    CompletionOp<Attempt, &Attempt::OnRead> read_;
    CompletionOp<Attempt, &Attempt::OnWritten> write_;
    CompletionOp<Attempt, &Attempt::OnWritesDone> writes_done_;
    CompletionOp<Attempt, &Attempt::OnFinished> finished_;
  };

  void OnLost(const std::shared_ptr<Attempt>& attempt, const absl::Status& why) {
    if (attempt != attempt_) return;
    attempt_ = nullptr;
    connected_ = false;
    const absl::Duration wait = handlers_.on_lost(why);
    if (!closing_) retry_ = executor_->After(wait, [this] { Connect(); });
  }

  Executor* executor_;
  grpc::CompletionQueue* queue_;
  std::unique_ptr<Manager::Stub> stub_;
  Opener opener_;
  Handlers handlers_;
  std::shared_ptr<Attempt> attempt_;
  bool connected_ = false;
  bool closing_ = false;
  TimerId retry_ = 0;
};

}  // namespace parkway::manager
