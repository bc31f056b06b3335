#include "manager/lease_client.h"

#include "base/status_wire.h"
#include "manager/streams.h"
#include "manager/wait_log.h"

namespace parkway::manager {
namespace {

constexpr absl::Duration kReportPeriod = absl::Seconds(1);

}  // namespace

class LeaseClient::Impl {
 public:
  Impl(Executor* executor, grpc::CompletionQueue* queue, const std::string& address, const LeaseRequest& request,
       Handlers handlers)
      : executor_(executor),
        request_(request),
        handlers_(std::move(handlers)),
        waiting_("the manager at " + address),
        stream_(executor, queue, address,
                [](Manager::Stub& stub, grpc::ClientContext* context, grpc::CompletionQueue* calls, void* tag) {
                  return stub.AsyncLease(context, calls, tag);
                },
                {.hello = [this] { return Request(); },
                 .on_message = [this](const ManagerToProxy& message) { OnMessage(message); },
                 .on_lost = [this](const absl::Status& why) { return OnLost(why); }}) {
    stream_.Connect();
    Tick();
  }

  ~Impl() { executor_->Cancel(timer_); }

  void RestartEngine(uint64_t incarnation, const std::string& reason) {
    ProxyMessage message;
    message.mutable_restart()->set_lease(placement_.lease());
    message.mutable_restart()->set_incarnation(incarnation);
    message.mutable_restart()->set_reason(reason);
    stream_.Send(message);
  }

 private:
  ProxyMessage Request() const {
    ProxyMessage message;
    *message.mutable_request() = request_;
    if (placement_.lease() != 0) *message.mutable_request()->mutable_held() = placement_;
    return message;
  }

  void OnMessage(const ManagerToProxy& message) {
    waiting_.Over();
    if (message.has_placement()) {
      if (placement_.lease() != 0 && placement_.lease() != message.placement().lease()) {
        LOG(WARNING) << "The manager does not know the lease any more and gives a new one; what lay on the old one's "
                        "devices is lost.";
      }
      placement_ = message.placement();
      handlers_.on_placement(placement_);
    } else if (message.has_refused()) {
      const absl::Status why = FromProto(message.refused());
      LOG(ERROR) << "The manager refuses the lease: " << why.message();
      stream_.Close();
      handlers_.on_refused(why);
    } else if (message.has_cancel()) {
      handlers_.on_cancel(message.cancel().session());
    }
  }

  absl::Duration OnLost(const absl::Status& why) {
    waiting_.Still(executor_->Now(), why);
    return limits::kRetryPeriod;
  }

  void Tick() {
    timer_ = executor_->After(limits::kHeartbeatPeriod, [this] { Tick(); });
    if (!stream_.connected()) return;
    ProxyMessage beat;
    beat.mutable_heartbeat()->set_number(++beats_);
    stream_.Send(beat);
    if (!handlers_.report || executor_->Now() - reported_ < kReportPeriod) return;
    reported_ = executor_->Now();
    ProxyMessage report;
    handlers_.report(report.mutable_report());
    stream_.Send(report);
  }

  Executor* executor_;
  LeaseRequest request_;
  Handlers handlers_;
  WaitLog waiting_;
  Placement placement_;
  uint64_t beats_ = 0;
  absl::Time reported_ = absl::InfinitePast();
  TimerId timer_ = 0;
  ReconnectingStream<ProxyMessage, ManagerToProxy> stream_;
};

LeaseClient::LeaseClient(Executor* executor, grpc::CompletionQueue* queue, const std::string& manager_address,
                         const LeaseRequest& request, Handlers handlers)
    : impl_(std::make_unique<Impl>(executor, queue, manager_address, request, std::move(handlers))) {}
LeaseClient::~LeaseClient() = default;

void LeaseClient::RestartEngine(uint64_t incarnation, const std::string& reason) {
  impl_->RestartEngine(incarnation, reason);
}

}  // namespace parkway::manager
