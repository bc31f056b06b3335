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
template <class Out, class In>
class ReconnectingStream {
 public:
  struct Handlers {
    std::function<Out()> hello;  // the first message of each connection
    std::function<void(const In& message)> on_message;
    // A connection ended or could not be made; returns how long to wait before the next try.
    std::function<absl::Duration(const absl::Status& why)> on_lost;
  };
  using Opener = std::function<void(Manager::Stub&, grpc::ClientContext*, grpc::ClientBidiReactor<Out, In>*)>;

  ReconnectingStream(Executor* executor, const std::string& address, Opener opener, Handlers handlers)
      : executor_(executor),
        stub_(Manager::NewStub(ManagerChannel(address))),
        opener_(std::move(opener)),
        handlers_(std::move(handlers)) {}

  ~ReconnectingStream() {
    executor_->Cancel(retry_);
    if (attempt_) attempt_->Abandon();
  }

  void Connect() {
    attempt_ = std::make_shared<Attempt>(this);
    attempt_->Open(handlers_.hello());
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
  class Attempt : public grpc::ClientBidiReactor<Out, In> {
   public:
    explicit Attempt(ReconnectingStream* owner) : owner_(owner), executor_(owner->executor_) {}

    void Open(Out hello) {
      self_ = owner_->attempt_;
      out_.push_back(std::move(hello));
      owner_->opener_(*owner_->stub_, &context_, this);
      this->AddHold();  // for what is started outside of reactions
      this->StartRead(&in_);
      this->StartWrite(&out_.front());
      this->StartCall();
    }

    void Send(const Out& message) {
      std::lock_guard lock(mutex_);
      if (ended_ || no_more_) return;
      if (out_.size() >= limits::kManagerStreamQueue) {
        context_.TryCancel();
        return;
      }
      out_.push_back(message);
      if (out_.size() == 1) this->StartWrite(&out_.front());
    }

    void WritesDone() {
      std::lock_guard lock(mutex_);
      if (ended_ || std::exchange(no_more_, true)) return;
      if (out_.empty()) this->StartWritesDone();
    }

    // The owner goes: no task of this attempt runs any more.
    void Abandon() {
      {
        std::lock_guard lock(gate_);
        executor_ = nullptr;
      }
      owner_ = nullptr;
      context_.TryCancel();
      End();
    }

    void OnReadDone(bool ok) override {
      if (!ok) {
        End();
        return;
      }
      Post(self_, [this] {
        owner_->connected_ = true;
        owner_->handlers_.on_message(in_);
        std::lock_guard lock(mutex_);
        if (!ended_) this->StartRead(&in_);
      });
    }

    void OnWriteDone(bool ok) override {
      std::lock_guard lock(mutex_);
      out_.pop_front();
      if (!ok) out_.clear();
      if (!out_.empty() && !ended_) {
        this->StartWrite(&out_.front());
      } else if (no_more_ && !ended_) {
        this->StartWritesDone();
      }
    }

    void OnDone(const grpc::Status& status) override {
      std::shared_ptr<Attempt> self = std::move(self_);
      Post(self, [this, self, status] { owner_->OnLost(self, FromGrpc(status)); });
    }

   private:
    // Runs it in the executor, and never in this thread, which is gRPC's, if the owner is still there.
    void Post(std::shared_ptr<Attempt> self, std::function<void()> task) {
      std::lock_guard lock(gate_);
      if (executor_ == nullptr) return;
      executor_->After(absl::ZeroDuration(), [self = std::move(self), task = std::move(task)] {
        if (self->owner_ != nullptr) task();
      });
    }

    void End() {
      std::lock_guard lock(mutex_);
      if (std::exchange(ended_, true)) return;
      this->RemoveHold();
    }

    ReconnectingStream* owner_;  // touched by the executor's tasks alone
    std::mutex gate_;
    Executor* executor_;             // guarded by gate_; null when the owner is gone
    std::shared_ptr<Attempt> self_;  // until gRPC is done
    grpc::ClientContext context_;
    In in_;
    std::mutex mutex_;
    std::deque<Out> out_;
    bool ended_ = false;
    bool no_more_ = false;
  };

  void OnLost(const std::shared_ptr<Attempt>& attempt, const absl::Status& why) {
    if (attempt != attempt_) return;
    attempt_ = nullptr;
    connected_ = false;
    const absl::Duration wait = handlers_.on_lost(why);
    if (!closing_) retry_ = executor_->After(wait, [this] { Connect(); });
  }

  Executor* executor_;
  std::unique_ptr<Manager::Stub> stub_;
  Opener opener_;
  Handlers handlers_;
  std::shared_ptr<Attempt> attempt_;
  bool connected_ = false;
  bool closing_ = false;
  TimerId retry_ = 0;
};

}  // namespace parkway::manager
