// Tags of gRPC completion queues. A CompletionOp is a member of a call and stands for one kind of operation on it (at
// most one at a time); while it is in the queue it keeps the call alive. Whoever polls the queue calls Run of what
// comes out, so that servers and clients of one process can share a queue and its one thread. Needs no gRPC.
#pragma once

#include <memory>
#include <utility>

namespace parkway {

class CompletionTag {
 public:
  virtual void Run(bool ok) = 0;  // on the polling thread

 protected:
  ~CompletionTag() = default;
};

template <typename Call, void (Call::*method)(bool)>
class CompletionOp final : public CompletionTag {
 public:
  // What is given to gRPC as the tag of an operation that is about to start.
  void* Arm(std::shared_ptr<Call> call) {
    call_ = std::move(call);
    return static_cast<CompletionTag*>(this);
  }
  void Run(bool ok) override {
    std::shared_ptr<Call> call = std::move(call_);
    ((*call).*method)(ok);
  }

 private:
  std::shared_ptr<Call> call_;
};

}  // namespace parkway
