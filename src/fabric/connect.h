// How connections come to be, on a Loop: Dial makes one, Acceptor takes those that others make. Sockets are handed over
// connected, blocking, without Nagle.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "fabric/loop.h"
#include "fabric/socket.h"

namespace parkway::fabric {

// Connects to `address`, trying each address that its name stands for. `done` runs once on the loop's thread:
// UNAVAILABLE naming the address and why, INVALID_ARGUMENT for what is no address, CANCELLED when the loop stops. Any
// thread.
void Dial(const std::shared_ptr<Loop>& loop, const std::string& address, absl::Duration timeout,
          absl::AnyInvocable<void(absl::StatusOr<UniqueFd>)> done);

// Accepts until destroyed (any thread; no callback runs afterwards), at most limits::kMaxConnectionsPerPort at once;
// more are closed at the door. The callback runs on the loop's thread; `slot` is kept for as long as the connection.
class Acceptor {
 public:
  using Accept = std::function<void(UniqueFd fd, std::string peer, std::shared_ptr<void> slot)>;
  Acceptor(std::shared_ptr<Loop> loop, ListeningSocket socket, Accept accept);
  ~Acceptor();
  Acceptor(const Acceptor&) = delete;

  const std::string& address() const;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace parkway::fabric
