#include "fabric/connect.h"

#include <fcntl.h>
#include <glog/logging.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <deque>

#include "absl/strings/str_cat.h"
#include "base/limits.h"

namespace parkway::fabric {
namespace {

using Descriptor = asio::posix::stream_descriptor;

// A full backlog of a unix socket refuses at once; it is asked again after so long.
constexpr std::chrono::milliseconds kBacklogRetry(10);
// While this process has no descriptor left, it looks again after so long.
constexpr std::chrono::milliseconds kAcceptRetry(100);

RawAddress LocalOrPeer(int fd, int (*get)(int, sockaddr*, socklen_t*)) {
  RawAddress raw;
  raw.size = sizeof(raw.storage);
  if (get(fd, reinterpret_cast<sockaddr*>(&raw.storage), &raw.size) != 0) raw = RawAddress();
  return raw;
}

// A TCP socket that asks for a port of its own range may be given that very port and reach itself.
bool ReachedItself(int fd) {
  const RawAddress here = LocalOrPeer(fd, getsockname), there = LocalOrPeer(fd, getpeername);
  return here.storage.ss_family != AF_UNIX && here.size == there.size &&
         std::memcmp(&here.storage, &there.storage, here.size) == 0;
}

class Dialer : public std::enable_shared_from_this<Dialer> {
 public:
  Dialer(std::shared_ptr<Loop> loop, std::string address, absl::AnyInvocable<void(absl::StatusOr<UniqueFd>)> done)
      : loop_(std::move(loop)),
        address_(std::move(address)),
        done_(std::move(done)),
        timer_(loop_->io()),
        retry_(loop_->io()),
        resolver_(loop_->io()),
        descriptor_(loop_->io()) {}

  ~Dialer() { ReleaseDescriptor(); }

  void Start(absl::Duration timeout) {
    at_stop_ = loop_->AtStop([self = shared_from_this()] {
      self->Finish(absl::CancelledError(absl::StrCat("no longer connecting to ", self->address_)));
    });
    if (!done_) return;
    timer_.expires_after(absl::ToChronoMilliseconds(timeout));
    timer_.async_wait([self = shared_from_this()](const asio::error_code& error) {
      if (!error) self->Fail("no answer in time");
    });
    const auto parsed = ParseAddress(address_);
    if (!parsed.ok()) return Finish(parsed.status());
    if (parsed->unix_path.empty()) return Resolve(*parsed);
    auto raw = UnixAddress(parsed->unix_path);
    if (!raw.ok()) return Finish(raw.status());
    candidates_.push_back(*raw);
    TryNext();
  }

 private:
  void Resolve(const Address& parsed) {
    // Held weakly: a resolver that hangs must not keep the loop.
    resolver_.async_resolve(
        parsed.host, parsed.port, asio::ip::resolver_base::numeric_service,
        [weak = weak_from_this()](const asio::error_code& error, const asio::ip::tcp::resolver::results_type& results) {
          const auto self = weak.lock();
          if (!self || !self->done_) return;
          if (error) return self->Fail(error.message());
          for (const auto& result : results) self->AddCandidate(result.endpoint());
          self->TryNext();
        });
  }

  void AddCandidate(const asio::ip::tcp::endpoint& endpoint) {
    RawAddress raw;
    raw.size = static_cast<socklen_t>(endpoint.size());
    std::memcpy(&raw.storage, endpoint.data(), raw.size);
    candidates_.push_back(raw);
  }

  void TryNext() {
    if (!done_) return;
    ReleaseDescriptor();
    if (candidates_.empty()) return Fail(last_error_);
    const RawAddress& raw = candidates_.front();
    fd_ = UniqueFd(socket(raw.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (!fd_.ok()) return Fail(std::strerror(errno));
    if (connect(fd_.get(), raw.get(), raw.size) == 0) return Connected();
    if (errno == EAGAIN) {
      retry_.expires_after(kBacklogRetry);
      retry_.async_wait([self = shared_from_this()](const asio::error_code& error) {
        if (!error) self->TryNext();
      });
      return;
    }
    if (errno != EINPROGRESS) return NextCandidate(std::strerror(errno));
    asio::error_code error;
    descriptor_.assign(fd_.get(), error);
    if (error) return NextCandidate(error.message());
    descriptor_.async_wait(Descriptor::wait_write, [self = shared_from_this()](const asio::error_code& failed) {
      if (!failed && self->done_) self->OnWritable();
    });
  }

  void OnWritable() {
    int error = 0;
    socklen_t size = sizeof(error);
    getsockopt(fd_.get(), SOL_SOCKET, SO_ERROR, &error, &size);
    if (error != 0) return NextCandidate(std::strerror(error));
    if (ReachedItself(fd_.get())) return NextCandidate(std::strerror(ECONNREFUSED));
    Connected();
  }

  void NextCandidate(std::string why) {
    last_error_ = std::move(why);
    candidates_.pop_front();
    TryNext();
  }

  void Connected() {
    ReleaseDescriptor();
    fcntl(fd_.get(), F_SETFL, fcntl(fd_.get(), F_GETFL) & ~O_NONBLOCK);
    SetNoDelay(fd_.get());
    Finish(std::move(fd_));
  }

  void Fail(const std::string& why) {
    Finish(absl::UnavailableError(absl::StrCat("can't connect to ", address_, ": ", why)));
  }

  void Finish(absl::StatusOr<UniqueFd> result) {
    if (!done_) return;
    loop_->RemoveAtStop(at_stop_);
    timer_.cancel();
    retry_.cancel();
    ReleaseDescriptor();
    auto done = std::exchange(done_, nullptr);
    done(std::move(result));
  }

  // The socket is ours: Asio only waits for it.
  void ReleaseDescriptor() {
    if (descriptor_.is_open()) descriptor_.release();
  }

  const std::shared_ptr<Loop> loop_;
  const std::string address_;
  absl::AnyInvocable<void(absl::StatusOr<UniqueFd>)> done_;  // empty once it was called
  asio::steady_timer timer_;
  asio::steady_timer retry_;
  asio::ip::tcp::resolver resolver_;
  Descriptor descriptor_;
  UniqueFd fd_;
  std::deque<RawAddress> candidates_;
  std::string last_error_ = "the name stands for no address";
  uint64_t at_stop_ = 0;
};

}  // namespace

void Dial(const std::shared_ptr<Loop>& loop, const std::string& address, absl::Duration timeout,
          absl::AnyInvocable<void(absl::StatusOr<UniqueFd>)> done) {
  auto dialer = std::make_shared<Dialer>(loop, address, std::move(done));
  loop->Post([dialer, timeout] { dialer->Start(timeout); });
}

struct Acceptor::State : std::enable_shared_from_this<State> {
  State(std::shared_ptr<Loop> l, ListeningSocket s, Accept a)
      : loop(std::move(l)), socket(std::move(s)), accept(std::move(a)), descriptor(loop->io()), retry(loop->io()) {}

  ~State() {
    if (descriptor.is_open()) descriptor.release();
  }

  void Wait() {
    descriptor.async_wait(Descriptor::wait_read, [self = shared_from_this()](const asio::error_code& error) {
      if (!error) self->AcceptAll();
    });
  }

  void AcceptAll() {
    while (accept) {
      RawAddress raw;
      raw.size = sizeof(raw.storage);
      UniqueFd fd(accept4(socket.fd.get(), reinterpret_cast<sockaddr*>(&raw.storage), &raw.size, SOCK_CLOEXEC));
      if (fd.ok()) {
        TakeOne(std::move(fd), raw);
      } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
        return Wait();
      } else if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
        return WaitForDescriptors();
      }  // else: that connection ended before it was accepted
    }
  }

  void TakeOne(UniqueFd fd, const RawAddress& raw) {
    std::string peer = socket.unix_path.empty() ? ToText(raw) : socket.address;
    if (connections->load() >= limits::kMaxConnectionsPerPort) {
      LOG_EVERY_N(WARNING, 100) << "refused a connection from " << peer << " to " << socket.address << ": "
                                << limits::kMaxConnectionsPerPort << " are open";
      return;
    }
    SetNoDelay(fd.get());
    connections->fetch_add(1);
    std::shared_ptr<void> slot(nullptr, [count = connections](void*) { count->fetch_sub(1); });
    const auto keep = accept;  // a callback may end the acceptor
    keep(std::move(fd), std::move(peer), std::move(slot));
  }

  void WaitForDescriptors() {
    LOG(WARNING) << "can't accept on " << socket.address << ": " << std::strerror(errno) << "; trying again";
    retry.expires_after(kAcceptRetry);
    retry.async_wait([self = shared_from_this()](const asio::error_code& error) {
      if (!error) self->AcceptAll();
    });
  }

  void Close() {  // on the loop's thread
    accept = nullptr;
    retry.cancel();
    if (descriptor.is_open()) descriptor.release();
    struct stat st {};
    if (!socket.unix_path.empty() && lstat(socket.unix_path.c_str(), &st) == 0 && st.st_ino == socket.unix_inode) {
      unlink(socket.unix_path.c_str());
    }
    socket.fd = UniqueFd();
    socket.unix_path.clear();
  }

  const std::shared_ptr<Loop> loop;
  ListeningSocket socket;
  Accept accept;
  Descriptor descriptor;
  asio::steady_timer retry;
  const std::shared_ptr<std::atomic<int>> connections = std::make_shared<std::atomic<int>>(0);
  uint64_t at_stop = 0;
};

Acceptor::Acceptor(std::shared_ptr<Loop> loop, ListeningSocket socket, Accept accept)
    : state_(std::make_shared<State>(std::move(loop), std::move(socket), std::move(accept))) {
  const int fd = state_->socket.fd.get();
  fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
  state_->at_stop = state_->loop->AtStop([state = state_] { state->Close(); });
  state_->loop->Post([state = state_] {
    asio::error_code error;
    if (!state->socket.fd.ok()) return;  // closed already
    state->descriptor.assign(state->socket.fd.get(), error);
    if (error) {
      LOG(ERROR) << "can't accept on " << state->socket.address << ": " << error.message();
      return;
    }
    state->AcceptAll();
  });
}

Acceptor::~Acceptor() {
  state_->loop->RemoveAtStop(state_->at_stop);
  state_->loop->RunSync([this] { state_->Close(); });
}

const std::string& Acceptor::address() const { return state_->socket.address; }

}  // namespace parkway::fabric
