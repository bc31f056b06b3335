#include "worker/worker.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/limits.h"
#include "base/status_wire.h"
#include "glog/logging.h"

namespace parkway::worker {
namespace {

constexpr absl::Duration kHealthyAfter = absl::Seconds(10);  // an engine that lived so long did not die of its start

}  // namespace

Worker::Worker(Executor* executor, WorkerHello hello, Hooks hooks)
    : executor_(executor), hello_(std::move(hello)), hooks_(std::move(hooks)) {}

Worker::~Worker() { executor_->Cancel(retry_); }

WorkerHello Worker::Hello() const {
  WorkerHello hello = hello_;
  if (wanted_ || engine_) *hello.add_engines() = state_;
  return hello;
}

void Worker::OnMessage(const ManagerToWorker& message) {
  if (leaving_) return;
  switch (message.kind_case()) {
    case ManagerToWorker::kSeat:
      *hello_.mutable_last_seat() = message.seat();
      break;
    case ManagerToWorker::kStart:
      if (engine_ && wanted_ && wanted_->lease() == message.start().lease()) break;
      wanted_ = message.start();
      pause_ = absl::ZeroDuration();
      if (engine_) {
        engine_->Stop(absl::AbortedError("another lease needs its place"));
      } else {
        Start();
      }
      break;
    case ManagerToWorker::kStop:
      if (!wanted_ || wanted_->lease() != message.stop().lease()) break;
      LOG(INFO) << "The engine is stopped: " << message.stop().reason();
      wanted_.reset();
      executor_->Cancel(retry_);
      if (engine_) {
        engine_->Stop(absl::AbortedError(absl::StrCat("stopped: ", message.stop().reason())));
      } else {
        hooks_.lease_over();
      }
      break;
    case ManagerToWorker::kRestart:
      if (!engine_ || !state_.up() || state_.endpoint().incarnation() != message.restart().incarnation()) break;
      LOG(WARNING) << "The engine is restarted: " << message.restart().reason();
      engine_->Kill(absl::AbortedError(absl::StrCat("restarted: ", message.restart().reason())));
      break;
    default:
      break;  // heartbeats; refusals are the connection's
  }
}

void Worker::Start() {
  executor_->Cancel(retry_);
  if (state_.lease() != wanted_->lease()) state_.Clear();
  state_.set_lease(wanted_->lease());
  state_.set_up(false);
  started_ = executor_->Now();
  EngineProcess::Events events;
  events.on_ready = [this](const EngineEndpoint& endpoint) { OnReady(endpoint); };
  events.on_exit = [this](const absl::Status& cause) { OnExit(cause); };
  auto engine = hooks_.start_engine(*wanted_, std::move(events));
  if (engine.ok()) {
    engine_ = *std::move(engine);
  } else {
    OnExit(engine.status());
  }
}

void Worker::OnReady(const EngineEndpoint& endpoint) {
  state_.set_up(true);
  *state_.mutable_endpoint() = endpoint;
  state_.clear_cause();
  LOG(INFO) << "The engine is ready: process " << endpoint.pid() << " at " << endpoint.address();
  Report();
}

void Worker::OnExit(const absl::Status& cause) {
  engine_.reset();
  state_.set_up(false);
  *state_.mutable_cause() =
      ToProto(absl::Status(cause.code(), absl::StrCat("the engine of worker ", hello_.name(), ": ", cause.message())));
  if (leaving_) {
    std::exchange(left_, nullptr)();
    return;
  }
  if (!wanted_) return hooks_.lease_over();
  if (wanted_->lease() != state_.lease()) {
    Start();
    return;
  }
  LOG(WARNING) << "The engine is down: " << cause.message() << "; it is started again.";
  Report();
  const bool healthy = executor_->Now() - started_ > kHealthyAfter;
  pause_ = healthy ? absl::ZeroDuration() : pause_;
  retry_ = executor_->After(pause_, [this] { Start(); });
  pause_ = std::min(std::max(2 * pause_, limits::kRetryPeriod), limits::kEngineRestartDelay);
}

void Worker::Report() const {
  WorkerMessage message;
  *message.mutable_engine() = state_;
  hooks_.send(message);
}

void Worker::Leave(const std::string& reason, std::function<void()> done) {
  WorkerMessage message;
  message.mutable_goodbye()->set_reason(reason);
  hooks_.send(message);
  wanted_.reset();
  executor_->Cancel(retry_);
  leaving_ = true;
  left_ = std::move(done);
  if (engine_) {
    engine_->Stop(absl::AbortedError("its worker left"));
  } else {
    std::exchange(left_, nullptr)();
  }
}

}  // namespace parkway::worker
