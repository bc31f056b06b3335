// Tags of the completion queue. An Op is a member of a call and stands for one kind of operation on it (at most one at
// a time); while it is in the queue it keeps the call alive.
#pragma once

#include <memory>
#include <utility>

namespace parkway::proxy {

class Tag {
 public:
  virtual void Run(bool ok) = 0;  // on the polling thread

 protected:
  ~Tag() = default;
};

template <typename Call, void (Call::*method)(bool)>
class Op final : public Tag {
 public:
  // What is given to gRPC as the tag of an operation that is about to start.
  void* Arm(std::shared_ptr<Call> call) {
    call_ = std::move(call);
    return static_cast<Tag*>(this);
  }
  void Run(bool ok) override {
    std::shared_ptr<Call> call = std::move(call_);
    ((*call).*method)(ok);
  }

 private:
  std::shared_ptr<Call> call_;
};

}  // namespace parkway::proxy
