// A link carries whole messages both ways between two processes, in order: 4 bytes that name the protocol, then for
// each message 4 bytes of length (little-endian) and the message. Sending never blocks and costs no change of thread
// when the socket has room; what does not fit is queued up to limits::kLinkQueueBytes, beyond which the link closes (a
// peer that reads nothing must not take our memory). Tests use SimLink pairs with the same interface.
//
// Send and Close may be called from any thread. Handlers run on the fabric's one thread, one at a time; on_closed is
// the last call and comes once, also after Close. Where a message must be handled on a thread of the owner's own (no
// change of thread between the socket and the launch), `own_thread` is set and that thread sits in Link::RunReadLoop.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace parkway::fabric {

using Frame = std::shared_ptr<const std::string>;  // a message, without its length; encoded once for many links

struct LinkHandlers {
  absl::AnyInvocable<void(std::string_view message)> on_message;
  absl::AnyInvocable<void(absl::Status why)> on_closed;
  bool own_thread = false;  // true: both run inside Link::RunReadLoop, and only there
};

class Link {
 public:
  // Closes. No handler runs once it has returned, so on_closed does not come either: a handler that runs on another
  // thread is waited for. A handler may destroy its own link.
  virtual ~Link() = default;
  // A message of 1 to limits::kMaxFrameBytes bytes; another size closes the link. Nothing happens when it is closed.
  virtual void Send(Frame frame) = 0;
  // What is still queued is dropped; what the socket took still arrives.
  virtual void Close(absl::Status why) = 0;
  // Only with LinkHandlers::own_thread, and once: reads, blocking, and runs the handlers on this thread until the link
  // is closed and on_closed has returned. To end it, Close the link, then join this thread.
  virtual void RunReadLoop() = 0;
  virtual std::string peer() const = 0;  // for messages: "10.0.0.2:41321", "unix:/run/x"
};

// The process's event loops (Asio): a thread for links and listeners, and one for bulk transfers once there are any.
class Fabric {
 public:
  Fabric();
  // Closes the links that are left (CANCELLED). Not from a handler.
  ~Fabric();
  Fabric(const Fabric&) = delete;

  // Connects to "host:port" or "unix:/path". `done` gets the link, already reading, or UNAVAILABLE naming the address.
  void Connect(const std::string& address, LinkHandlers handlers,
               absl::AnyInvocable<void(absl::StatusOr<std::unique_ptr<Link>>)> done);

  // Listens; `accept` is asked for handlers for each new link and then given it. Port 0 picks one. Stops when
  // destroyed.
  class Listener {
   public:
    virtual ~Listener() = default;
    virtual std::string address() const = 0;  // "host:port" with the port that was picked, or "unix:/path"
  };
  struct Accepted {
    LinkHandlers handlers;
    absl::AnyInvocable<void(std::unique_ptr<Link>)> opened;  // called before the first message is delivered
  };
  absl::StatusOr<std::unique_ptr<Listener>> Listen(const std::string& address,
                                                   std::function<Accepted(std::string peer)> accept);

  struct Impl;
  Impl& impl() { return *impl_; }

 private:
  std::unique_ptr<Impl> impl_;
};

// Two ends of a link without a socket: messages are delivered when Pump is called, in order. For tests; one thread.
struct SimLinkPair {
  std::unique_ptr<Link> a, b;
  std::function<int()> pump;  // delivers what is queued both ways; returns how many messages
};
SimLinkPair MakeSimLinkPair(LinkHandlers a, LinkHandlers b);

}  // namespace parkway::fabric
