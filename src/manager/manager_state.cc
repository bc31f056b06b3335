#include "manager/manager_state.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/limits.h"
#include "base/status.h"
#include "base/status_wire.h"
#include "glog/logging.h"
#include "manager/slice_type.h"

namespace parkway::manager {

ManagerState::ManagerState(Executor* executor, ManagerStateOptions options, ManagerOutput* output)
    : executor_(executor), options_(std::move(options)), output_(output) {
  last_check_ = executor_->Now();
  resume_until_ = last_check_ + limits::kManagerResumeWindow;
  resume_timer_ = executor_->After(limits::kManagerResumeWindow, [this] { EndResumeWindow(); });
  health_timer_ = executor_->After(limits::kHeartbeatPeriod, [this] { CheckHealth(); });
  Recall();
}

ManagerState::~ManagerState() {
  executor_->Cancel(save_timer_);
  executor_->Cancel(health_timer_);
  executor_->Cancel(resume_timer_);
}

void ManagerState::OnWorkerOpened(StreamId stream) {
  streams_[stream] = Stream{.is_worker = true, .heard = executor_->Now()};
}

void ManagerState::OnProxyOpened(StreamId stream) { streams_[stream] = Stream{.heard = executor_->Now()}; }

void ManagerState::OnWorker(StreamId id, const WorkerMessage& message) {
  auto it = streams_.find(id);
  if (it == streams_.end()) return;  // ended from here already
  Stream& stream = it->second;
  stream.heard = executor_->Now();
  const bool joined = !stream.worker.empty();
  if (joined == message.has_hello()) {
    const absl::Status why = absl::InvalidArgumentError("a worker's first message, and no later one, is its hello");
    if (joined) {
      OnClosed(id, why.ToString());
      output_->End(id, why);
    } else {
      EndStream(id, why);
    }
    return;
  }
  switch (message.kind_case()) {
    case WorkerMessage::kHello:
      Join(id, message.hello());
      break;
    case WorkerMessage::kHeartbeat: {
      ManagerToWorker answer;
      *answer.mutable_heartbeat() = message.heartbeat();
      output_->ToWorker(id, answer);
      return;  // nothing changed
    }
    case WorkerMessage::kEngine:
      OnEngineState(workers_.at(stream.worker), message.engine());
      break;
    case WorkerMessage::kGoodbye: {
      Lose(workers_.at(stream.worker), absl::StrCat("it left: ", message.goodbye().reason()));
      EndStream(id, absl::OkStatus());
      break;
    }
    case WorkerMessage::KIND_NOT_SET:
      break;  // a kind of a later version
  }
  Settle();
}

void ManagerState::OnProxy(StreamId id, const ProxyMessage& message) {
  auto it = streams_.find(id);
  if (it == streams_.end()) return;
  Stream& stream = it->second;
  stream.heard = executor_->Now();
  const bool requested = stream.lease != 0;
  if (requested == message.has_request()) {
    RefuseProxy(id, absl::InvalidArgumentError("a proxy's first message, and no later one, is its lease request"));
    Settle();
    return;
  }
  switch (message.kind_case()) {
    case ProxyMessage::kRequest:
      Request(id, message.request());
      break;
    case ProxyMessage::kHeartbeat: {
      ManagerToProxy answer;
      *answer.mutable_heartbeat() = message.heartbeat();
      output_->ToProxy(id, answer);
      return;
    }
    case ProxyMessage::kRestart:
      ForwardRestart(stream.lease, message.restart());
      break;
    case ProxyMessage::kReport:
      leases_.at(stream.lease).report = message.report();
      return;
    case ProxyMessage::KIND_NOT_SET:
      break;
  }
  Settle();
}

void ManagerState::OnClosed(StreamId id, const std::string& why) {
  auto node = streams_.extract(id);
  if (node.empty()) return;
  const Stream& stream = node.mapped();
  if (!stream.worker.empty()) Lose(workers_.at(stream.worker), why);
  if (stream.lease != 0) EndLease(stream.lease, why);
  Settle();
}

// ---- Ends of streams ---------------------------------------------------------------------------------------------

void ManagerState::EndStream(StreamId stream, const absl::Status& why) {
  streams_.erase(stream);
  output_->End(stream, why);
}

void ManagerState::RefuseWorker(StreamId stream, const absl::Status& why) {
  LOG(WARNING) << "A worker is refused: " << why.message();
  ManagerToWorker refusal;
  *refusal.mutable_refused() = ToProto(why);
  output_->ToWorker(stream, refusal);
  EndStream(stream, why);
}

void ManagerState::RefuseProxy(StreamId stream, const absl::Status& why) {
  LOG(WARNING) << "A proxy is refused: " << why.message();
  const uint64_t lease = streams_.at(stream).lease;
  ManagerToProxy refusal;
  *refusal.mutable_refused() = ToProto(why);
  output_->ToProxy(stream, refusal);
  EndStream(stream, why);
  if (lease != 0) EndLease(lease, std::string(why.message()));
}

// ---- Health ------------------------------------------------------------------------------------------------------

void ManagerState::CheckHealth() {
  health_timer_ = executor_->After(limits::kHeartbeatPeriod, [this] { CheckHealth(); });
  const absl::Time now = executor_->Now();
  // When the manager itself was stopped, or the clock was set, nobody else's silence is known.
  const absl::Duration late = now - last_check_ - limits::kHeartbeatPeriod;
  last_check_ = now;
  if (late > limits::kHeartbeatPeriod) {
    LOG(WARNING) << "The manager did not run for " << absl::FormatDuration(late) << "; heartbeats count anew.";
    for (auto& [id, stream] : streams_) stream.heard += late;
    return;
  }
  std::vector<StreamId> silent;
  for (const auto& [id, stream] : streams_) {
    const absl::Duration limit = stream.is_worker ? limits::kHeartbeatTimeout : limits::kLeaseTimeout;
    if (now - stream.heard > limit) silent.push_back(id);
  }
  for (StreamId id : silent) {
    const bool is_worker = streams_.at(id).is_worker;
    const std::string why =
        absl::StrFormat("no heartbeat for %s: it is frozen, or its machine or the network to it is down",
                        absl::FormatDuration(is_worker ? limits::kHeartbeatTimeout : limits::kLeaseTimeout));
    OnClosed(id, why);
    output_->End(id, absl::UnavailableError(why));
  }
}

void ManagerState::EndResumeWindow() {
  remembered_.clear();
  for (auto& slice : slices_) {
    if (slice->orphan == 0) continue;
    LOG(INFO) << "The proxy of lease " << Hex(slice->orphan) << " on " << slice->name
              << " did not ask for it again; its engines are stopped.";
    for (Host& host : slice->hosts) {
      StopEngine(host, slice->orphan, "its proxy did not come back after the manager's restart");
      host.engine.Clear();
    }
    slice->orphan = 0;
  }
  for (auto& [id, lease] : leases_) {
    if (!std::exchange(lease.resuming, false)) continue;
    lease.dirty = true;
    for (Slice* slice : lease.slices) {
      for (Host& host : slice->hosts) {
        if (Alive(host)) continue;
        host.engine.set_up(false);
        *host.engine.mutable_cause() = ToProto(absl::UnavailableError(
            absl::StrCat("worker ", host.worker, " did not come back after the manager's restart")));
      }
    }
  }
  Settle();
}

void ManagerState::Settle() {
  PlaceWaiting();
  for (auto& [id, lease] : leases_) {
    if (lease.resuming &&
        std::all_of(lease.slices.begin(), lease.slices.end(), [this](const Slice* s) { return Ready(*s); })) {
      lease.resuming = false;
      lease.dirty = true;
    }
    if (lease.dirty && !lease.resuming) SendPlacement(lease);
  }
  const int ready =
      static_cast<int>(std::count_if(slices_.begin(), slices_.end(), [this](auto& s) { return Ready(*s); }));
  if (ready != std::exchange(ready_slices_, ready)) {
    const int expected = std::max(options_.expected_slices, static_cast<int>(slices_.size()));
    LOG(INFO) << "*** " << ready << "/" << expected << " Pathways Slices Now Ready ***";
  }
  SaveSoon();
}

// ---- Status ------------------------------------------------------------------------------------------------------

ManagerStatus ManagerState::Status() const {
  ManagerStatus status;
  status.set_expected_slices(options_.expected_slices);
  status.set_instance(instance_);
  status.set_starts(starts_);
  *status.mutable_expected_type() = options_.expected_type;
  for (const auto& slice : slices_) {
    SliceStatus& s = *status.add_slices();
    s.set_name(slice->name);
    *s.mutable_type() = slice->type;
    s.set_ready(Ready(*slice));
    s.set_lease(slice->lease);
    for (const Host& host : slice->hosts) {
      WorkerStatus& w = *s.add_workers();
      w.set_engine_up(host.engine.up());
      if (host.engine.up()) w.set_engine_pid(host.engine.endpoint().pid());
      auto it = workers_.find(host.worker);
      if (it == workers_.end()) {
        w.set_name(host.worker);
        w.set_state("not here yet");
        continue;
      }
      const Worker& worker = it->second;
      w.set_name(worker.hello.name());
      w.set_address(worker.hello.address());
      w.set_pid(worker.hello.pid());
      w.set_devices(worker.hello.devices());
      w.set_alive(worker.stream != 0);
      w.set_state(worker.stream == 0  ? absl::StrCat("lost: ", std::string(worker.lost.message()))
                  : slice->lease != 0 ? "leased"
                                      : "idle");
    }
  }
  for (const auto& [id, lease] : leases_) {
    LeaseStatus& l = *status.add_leases();
    l.set_lease(id);
    l.set_epoch(lease.epoch);
    l.set_owner(lease.request.owner());
    *l.mutable_slices() = lease.request.slices();
    l.set_placed(!lease.slices.empty());
    l.set_waiting_for(lease.waiting_for);
    *l.mutable_report() = lease.report;
  }
  return status;
}

std::string Hex(uint64_t id) { return absl::StrCat(absl::Hex(id)); }

std::string ManagerState::Describe(const Worker& worker) const {
  return absl::StrCat("worker ", worker.hello.name(), " (host ", worker.host, " of ", worker.slice, ")");
}

}  // namespace parkway::manager
