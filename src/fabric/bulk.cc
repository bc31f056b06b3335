#include "fabric/bulk.h"

#include <glog/logging.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/machine.h"
#include "base/random.h"
#include "fabric/bulk_connection.h"
#include "fabric/bulk_puller.h"
#include "fabric/connect.h"
#include "fabric/fabric_impl.h"
#include "fabric/offer_table.h"

namespace parkway::fabric {
namespace {

class Server;

// A connection that somebody pulls over. On the loop's thread.
class Client : public BulkConnection::Handler, public std::enable_shared_from_this<Client> {
 public:
  Client(Server& server, std::shared_ptr<BulkConnection> connection)
      : server_(server), connection_(std::move(connection)) {}

  void Start() { connection_->Start(this); }
  void Close() { connection_->Close(); }
  void Sweep(absl::Time now);
  void Answer(uint64_t tag, bool local, const absl::StatusOr<Bytes>& bytes);

  absl::StatusOr<uint8_t*> Place(const BulkHeader&) override {
    return absl::InvalidArgumentError("a puller sent what only the owner of a transfer may");
  }
  absl::Status OnMessage(const BulkHeader& header, std::string_view payload) override;
  void OnClosed(absl::Status why) override;

 private:
  Server& server_;
  const std::shared_ptr<BulkConnection> connection_;
  size_t unanswered_ = 0;
};

// What lives on the loop's thread; offers are any thread's. Held by whatever waits on the loop.
class Server : public std::enable_shared_from_this<Server> {
 public:
  Server(std::shared_ptr<Loop> loop, BulkOptions options)
      : loop_(std::move(loop)), options_(options), puller_(loop_, options), timer_(loop_->io()) {}

  void Start() {
    at_stop_ = loop_->AtStop([self = shared_from_this()] { self->Stop(); });
    loop_->Post([self = shared_from_this()] { self->ArmTimer(); });
  }

  void Stop() {
    if (std::exchange(stopped_, true)) return;
    loop_->RemoveAtStop(at_stop_);
    timer_.cancel();
    for (auto& [client, owner] : std::exchange(clients_, {})) client->Close();
    const absl::Status why = absl::CancelledError("this process ends its transfers");
    puller_.CloseAll(why);
    offers_.FailAll(why);
  }

  void Accept(UniqueFd fd, std::string peer, std::shared_ptr<void> slot) {
    if (stopped_) return;
    auto client = std::make_shared<Client>(
        *this, std::make_shared<BulkConnection>(loop_, std::move(fd), std::move(peer), std::move(slot)));
    clients_.emplace(client.get(), client);
    client->Start();
  }
  void Remove(Client* client) {
    offers_.Forget(client);
    clients_.erase(client);
  }

  void Fetch(const std::string& endpoint, uint64_t id, uint64_t size, Bulk::Done done) {
    if (stopped_) return done(absl::CancelledError("this process ends its transfers"));
    puller_.Pull(endpoint, id, size, std::move(done));
  }

  // Runs `task` on the loop's thread: now, when this is it.
  template <typename T>
  void OnLoop(T task) {
    if (loop_->OnThread()) {
      task();
    } else {
      loop_->Post(std::move(task));
    }
  }

  Loop& loop() { return *loop_; }
  OfferTable& offers() { return offers_; }
  const BulkOptions& options() const { return options_; }

 private:
  void ArmTimer() {
    if (stopped_) return;
    const absl::Duration period =
        std::clamp(std::min(options_.wait, options_.stall) / 4, absl::Milliseconds(5), absl::Seconds(1));
    timer_.expires_after(absl::ToChronoMilliseconds(period));
    timer_.async_wait([self = shared_from_this()](const asio::error_code& error) {
      if (error || self->stopped_) return;
      self->Sweep(absl::Now());
      self->ArmTimer();
    });
  }
  void Sweep(absl::Time now) {
    offers_.Expire(now);
    puller_.Sweep(now);
    std::vector<std::shared_ptr<Client>> clients;
    for (auto& [key, client] : clients_) clients.push_back(client);
    for (auto& client : clients) client->Sweep(now);
  }

  const std::shared_ptr<Loop> loop_;
  const BulkOptions options_;
  OfferTable offers_;
  BulkPuller puller_;
  absl::flat_hash_map<Client*, std::shared_ptr<Client>> clients_;
  asio::steady_timer timer_;
  uint64_t at_stop_ = 0;
  bool stopped_ = false;
};

void Client::Sweep(absl::Time now) {
  if (!connection_->Stalled(now, server_.options().stall)) return;
  OnClosed(absl::AbortedError("it takes no bytes"));
}

absl::Status Client::OnMessage(const BulkHeader& header, std::string_view payload) {
  if (header.kind == BulkKind::kCancel) {
    connection_->StopStream(header.tag);
    return absl::OkStatus();
  }
  if (header.kind != BulkKind::kPull) {
    return absl::InvalidArgumentError("a puller sent what only the owner of a transfer may");
  }
  if (unanswered_ + connection_->streams() >= static_cast<size_t>(limits::kMaxPullsPerConnection)) {
    return absl::ResourceExhaustedError("it waits for too many transfers at once");
  }
  ++unanswered_;
  const bool local = payload == MachineIdentity();
  server_.offers().Await(header.value, this, absl::Now() + server_.options().wait,
                         [weak = weak_from_this(), server = server_.shared_from_this(), tag = header.tag,
                          local](absl::StatusOr<Bytes> bytes) {
                           server->OnLoop([weak, tag, local, bytes = std::move(bytes)] {
                             if (auto self = weak.lock()) self->Answer(tag, local, bytes);
                           });
                         });
  return absl::OkStatus();
}

void Client::Answer(uint64_t tag, bool local, const absl::StatusOr<Bytes>& bytes) {
  --unanswered_;
  BulkHeader header;
  header.tag = tag;
  if (!bytes.ok()) {
    header.kind = BulkKind::kRefused;
    header.code = static_cast<uint16_t>(bytes.status().code());
    return connection_->Send(header, std::string(bytes.status().message()));
  }
  if (!local || bytes->local_path.empty()) return connection_->Stream(tag, *bytes);
  header.kind = BulkKind::kLocal;
  header.value = bytes->size;
  connection_->Send(header, bytes->local_path);
}

void Client::OnClosed(absl::Status why) {
  const auto keep = shared_from_this();
  if (why.code() != absl::StatusCode::kUnavailable) {
    LOG_EVERY_N(WARNING, 100) << "closed a connection for bulk transfers from " << connection_->peer() << ": "
                              << why.message();
  }
  connection_->Close();
  server_.Remove(this);
}

class BulkImpl : public Bulk {
 public:
  BulkImpl(const std::shared_ptr<Loop>& loop, ListeningSocket socket, BulkOptions options)
      : server_(std::make_shared<Server>(loop, options)),
        acceptor_(loop, std::move(socket),
                  [server = server_](UniqueFd fd, std::string peer, std::shared_ptr<void> slot) {
                    server->Accept(std::move(fd), std::move(peer), std::move(slot));
                  }) {
    server_->Start();
  }
  ~BulkImpl() override {
    server_->loop().RunSync([this] { server_->Stop(); });
  }

  std::string endpoint() const override { return acceptor_.address(); }

  Transfer Offer(Bytes bytes) override {
    Transfer transfer;
    transfer.set_id(RandomUint64());
    transfer.set_size(bytes.size);
    transfer.set_endpoint(endpoint());
    transfer.set_machine(MachineIdentity());
    transfer.set_local_path(bytes.local_path);
    server_->offers().Put(transfer.id(), std::move(bytes));
    return transfer;
  }
  void Fulfil(uint64_t id, Bytes bytes) override { server_->offers().Put(id, std::move(bytes)); }
  void Fail(uint64_t id, absl::Status why) override {
    if (why.ok()) why = absl::AbortedError("its owner gave it up without a reason");
    server_->offers().Put(id, std::move(why));
  }
  void Drop(uint64_t id) override { server_->offers().Drop(id); }

  void Fetch(const Transfer& transfer, Done done) override {
    if (transfer.machine() == MachineIdentity() && !transfer.local_path().empty()) {
      auto mapped = Blob::Map(transfer.local_path(), transfer.size());
      if (mapped.ok()) return done(std::move(mapped));
    }
    server_->loop().Post([server = server_, endpoint = transfer.endpoint(), id = transfer.id(), size = transfer.size(),
                          done = std::move(done)]() mutable { server->Fetch(endpoint, id, size, std::move(done)); });
  }

 private:
  const std::shared_ptr<Server> server_;
  Acceptor acceptor_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Bulk>> Bulk::Create(Fabric& fabric, const std::string& host, BulkOptions options) {
  const size_t colon = host.rfind(':');
  const bool has_port = colon != std::string::npos && (host.find(':') == colon || host[colon - 1] == ']');
  auto socket = ListenOn(has_port ? host : absl::StrCat(host, ":0"));
  if (!socket.ok()) return socket.status();
  return std::make_unique<BulkImpl>(fabric.impl().BulkLoop(), *std::move(socket), options);
}

}  // namespace parkway::fabric
