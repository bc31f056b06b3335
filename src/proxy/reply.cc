#include "proxy/reply.h"

#include <utility>

#include "proxy/wire_status.h"

namespace parkway::proxy {

namespace wire = xla::ifrt::proxy;

Reply::Reply(std::shared_ptr<ReplyState> state, const wire::RequestMetadata& request, Kind kind)
    : state_(std::move(state)),
      message_(std::make_unique<wire::IfrtResponse>()),
      user_context_(request.user_context_id()),
      awaited_(kind == Kind::kAwaited),
      counted_(kind != Kind::kUncounted) {
  message_->mutable_response_metadata()->set_op_id(request.op_id());
}

Reply::~Reply() {
  if (message_ != nullptr) Fail(absl::AbortedError("the operation was given up before it ended"));
}

void Reply::Ok() {
  wire::ResponseMetadata* metadata = message_->mutable_response_metadata();
  if (counted_) {
    metadata->set_seq_num(state_->next_number++);
    if (user_context_ != 0) metadata->add_destroyed_user_context_ids(user_context_);
  }
  Send();
}

void Reply::Fail(const absl::Status& status) {
  message_->clear_response();
  EncodeStatus(status, message_->mutable_response_metadata()->mutable_status());
  Send();
}

void Reply::Send() {
  if (state_->sink != nullptr) state_->sink->Send(std::move(message_), awaited_);
  message_ = nullptr;
}

}  // namespace parkway::proxy
