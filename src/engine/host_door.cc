#include "engine/host_door.h"

#include <glog/logging.h>

#include <mutex>
#include <set>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/limits.h"

namespace parkway::engine {
namespace {

// Takes the same time wherever the difference is.
bool SameSecret(const std::string& a, const std::string& b) {
  if (a.size() != b.size()) return false;
  unsigned char difference = 0;
  for (size_t i = 0; i < a.size(); ++i) difference |= static_cast<unsigned char>(a[i] ^ b[i]);
  return difference == 0;
}

enum class Part { kUnknown, kOperations, kControl };

// One connection.
struct Caller {
  std::string peer;
  std::shared_ptr<fabric::Link> link;  // set before the first message
  Part part = Part::kUnknown;          // touched by its reader alone
  std::thread reader;                  // of its own; joined or detached by whoever takes the caller from the sets
};
using CallerRef = std::shared_ptr<Caller>;

}  // namespace

struct HostDoor::State : std::enable_shared_from_this<State> {
  State(EngineHost& host, Executor& clock, Options options) : host(host), clock(clock), options(std::move(options)) {}

  void OnOpened(const CallerRef& caller, std::unique_ptr<fabric::Link> link);
  void OnMessage(const CallerRef& caller, std::string_view message);
  absl::Status OnHello(const CallerRef& caller, std::string_view message);
  void OnClosed(const CallerRef& caller, const absl::Status& why);

  EngineHost& host;
  Executor& clock;
  const Options options;

  mutable std::mutex mutex;
  std::set<CallerRef> unknown;  // callers that have yet to say who they are
  std::set<CallerRef> known;
  bool claimed = false;
  bool closed = false;
};

HostDoor::HostDoor(EngineHost& host, Executor& clock, Options options)
    : state_(std::make_shared<State>(host, clock, std::move(options))) {}

HostDoor::~HostDoor() {
  std::set<CallerRef> callers;
  {
    std::lock_guard<std::mutex> lock(state_->mutex);
    state_->closed = true;
    callers.swap(state_->unknown);
    callers.merge(state_->known);
  }
  for (const CallerRef& caller : callers) {
    caller->link->Close(absl::CancelledError("the engine ends"));
    if (caller->reader.joinable()) caller->reader.join();
  }
}

bool HostDoor::claimed() const {
  std::lock_guard<std::mutex> lock(state_->mutex);
  return state_->claimed;
}

fabric::Fabric::Accepted HostDoor::Accept(const std::string& peer) {
  auto caller = std::make_shared<Caller>();
  caller->peer = peer;
  fabric::Fabric::Accepted accepted;
  accepted.handlers.own_thread = state_->options.own_threads;
  // The door's sets own the callers, and these their links: no circle.
  accepted.handlers.on_message = [state = state_, weak = std::weak_ptr<Caller>(caller)](std::string_view message) {
    if (const CallerRef caller = weak.lock()) state->OnMessage(caller, message);
  };
  accepted.handlers.on_closed = [state = state_, weak = std::weak_ptr<Caller>(caller)](const absl::Status& why) {
    if (const CallerRef caller = weak.lock()) state->OnClosed(caller, why);
  };
  accepted.opened = [state = state_, caller = std::move(caller)](std::unique_ptr<fabric::Link> link) {
    state->OnOpened(caller, std::move(link));
  };
  return accepted;
}

void HostDoor::State::OnOpened(const CallerRef& caller, std::unique_ptr<fabric::Link> link) {
  caller->link = std::move(link);
  {
    std::lock_guard<std::mutex> lock(mutex);
    if (closed || unknown.size() >= static_cast<size_t>(limits::kMaxUnknownCallers)) return;  // which closes it
    unknown.insert(caller);
    if (options.own_threads) caller->reader = std::thread([caller] { caller->link->RunReadLoop(); });
  }
  clock.After(limits::kHelloWait, [self = shared_from_this(), weak = std::weak_ptr<Caller>(caller)] {
    const CallerRef caller = weak.lock();
    if (caller == nullptr) return;
    std::lock_guard<std::mutex> lock(self->mutex);
    if (self->unknown.contains(caller)) caller->link->Close(absl::UnavailableError("it didn't say who it is"));
  });
}

void HostDoor::State::OnMessage(const CallerRef& caller, std::string_view message) {
  absl::Status status;
  switch (caller->part) {
    case Part::kUnknown:
      status = OnHello(caller, message);
      if (!status.ok()) LOG(WARNING) << "A connection from " << caller->peer << " was refused: " << status.message();
      break;
    case Part::kOperations:
      status = host.OnMessage(message);
      break;
    case Part::kControl:
      status = host.OnControl(message);
      break;
  }
  if (!status.ok()) caller->link->Close(status);
}

absl::Status HostDoor::State::OnHello(const CallerRef& caller, std::string_view message) {
  ProxyHello hello;
  if (message.size() > limits::kMaxHelloBytes ||
      !hello.ParseFromArray(message.data(), static_cast<int>(message.size()))) {
    return absl::InvalidArgumentError("it sent something that is no greeting");
  }
  if (!SameSecret(hello.token(), options.token)) {
    return absl::PermissionDeniedError("it doesn't know this engine's secret");
  }
  {
    std::lock_guard<std::mutex> lock(mutex);
    if (closed) return absl::CancelledError("the engine ends");
    if (hello.control() != claimed) {
      return absl::FailedPreconditionError(claimed ? "this engine already serves a proxy"
                                                   : "the link of the operations has to come first");
    }
    claimed = true;
    unknown.erase(caller);
    known.insert(caller);
  }
  caller->part = hello.control() ? Part::kControl : Part::kOperations;
  if (hello.control()) {
    Events events;
    *events.mutable_hello() = host.Hello();
    caller->link->Send(std::make_shared<const std::string>(events.SerializeAsString()));
    return absl::OkStatus();
  }
  return host.Start(hello, [link = caller->link](fabric::Frame frame) { link->Send(std::move(frame)); });
}

void HostDoor::State::OnClosed(const CallerRef& caller, const absl::Status& why) {
  {
    std::lock_guard<std::mutex> lock(mutex);
    if (unknown.erase(caller) + known.erase(caller) > 0 && caller->reader.joinable()) caller->reader.detach();
  }
  if (caller->part == Part::kOperations && options.lost) options.lost(why);
}

}  // namespace parkway::engine
