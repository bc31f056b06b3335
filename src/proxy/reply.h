// The reply to one request. Each request gets exactly one: a Reply that is dropped unsent says so itself. What the
// client counts on is kept here: replies that it counts are numbered without a gap, and the user context of a request
// is listed once, in its own reply, and only in one that is OK (a client aborts on one listed once too often).
//
// Replies are made and sent inside tasks of the core's executor. The sink takes them on whatever thread that is.
#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "proto/ifrt/ifrt_service.pb.h"

namespace parkway::proxy {

class ReplySink {
 public:
  virtual ~ReplySink() = default;
  // `awaited`: the client may be waiting for it, so that nothing may hold it back.
  virtual void Send(std::unique_ptr<xla::ifrt::proxy::IfrtResponse> response, bool awaited) = 0;
};

// What the replies of one session share. Closed when the client is gone.
struct ReplyState {
  ReplySink* sink = nullptr;  // null: closed
  int64_t next_number = 0;
};

class Reply {
 public:
  enum class Kind {
    kAwaited,    // the client may block on it
    kUnawaited,  // fire and forget
    kUncounted,  // fire and forget, and has no number
  };
  Reply(std::shared_ptr<ReplyState> state, const xla::ifrt::proxy::RequestMetadata& request, Kind kind);
  Reply(Reply&& other) = default;
  Reply& operator=(Reply&&) = delete;
  ~Reply();

  // For a future of a deletion, which the client doesn't count.
  void set_uncounted() { counted_ = false; }
  // The member that matches the request is set here, then Ok is called; or else Fail.
  xla::ifrt::proxy::IfrtResponse* message() { return message_.get(); }
  void Ok();
  void Fail(const absl::Status& status);

 private:
  void Send();

  std::shared_ptr<ReplyState> state_;
  std::unique_ptr<xla::ifrt::proxy::IfrtResponse> message_;  // null: sent, or moved from
  uint64_t user_context_;
  bool awaited_;
  bool counted_;
};

}  // namespace parkway::proxy
