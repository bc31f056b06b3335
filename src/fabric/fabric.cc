#include <utility>

#include "base/limits.h"
#include "fabric/connect.h"
#include "fabric/fabric_impl.h"
#include "fabric/link.h"
#include "fabric/socket_link.h"

namespace parkway::fabric {
namespace {

class SocketListener : public Fabric::Listener {
 public:
  SocketListener(const std::shared_ptr<Loop>& loop, ListeningSocket socket,
                 std::function<Fabric::Accepted(std::string peer)> accept)
      : acceptor_(loop, std::move(socket),
                  [loop, accept = std::move(accept)](UniqueFd fd, std::string peer, std::shared_ptr<void> slot) {
                    Fabric::Accepted accepted = accept(peer);
                    auto link = std::make_shared<SocketLink>(loop, std::move(fd), std::move(peer),
                                                             std::move(accepted.handlers), std::move(slot));
                    accepted.opened(link->MakeHandle());
                    link->Start();
                  }) {}
  std::string address() const override { return acceptor_.address(); }

 private:
  Acceptor acceptor_;
};

}  // namespace

std::shared_ptr<Loop> Fabric::Impl::BulkLoop() {
  std::lock_guard lock(mutex);
  if (!bulk_loop) bulk_loop = std::make_shared<Loop>("bulk");
  return bulk_loop;
}

Fabric::Fabric() : impl_(std::make_unique<Impl>()) {}

Fabric::~Fabric() {
  impl_->loop->Stop();
  if (impl_->bulk_loop) impl_->bulk_loop->Stop();
}

void Fabric::Connect(const std::string& address, LinkHandlers handlers,
                     absl::AnyInvocable<void(absl::StatusOr<std::unique_ptr<Link>>)> done) {
  const std::shared_ptr<Loop> loop = impl_->loop;
  Dial(loop, address, limits::kConnectTimeout,
       [loop, address, handlers = std::move(handlers), done = std::move(done)](absl::StatusOr<UniqueFd> fd) mutable {
         if (!fd.ok()) return done(fd.status());
         auto link = std::make_shared<SocketLink>(loop, *std::move(fd), address, std::move(handlers), nullptr);
         done(link->MakeHandle());
         link->Start();
       });
}

absl::StatusOr<std::unique_ptr<Fabric::Listener>> Fabric::Listen(const std::string& address,
                                                                 std::function<Accepted(std::string peer)> accept) {
  auto socket = ListenOn(address);
  if (!socket.ok()) return socket.status();
  return std::make_unique<SocketListener>(impl_->loop, *std::move(socket), std::move(accept));
}

}  // namespace parkway::fabric
