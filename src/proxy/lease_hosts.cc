#include "proxy/lease_hosts.h"

#include <glog/logging.h>

#include <set>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "base/limits.h"
#include "base/machine.h"
#include "base/status.h"
#include "base/status_wire.h"

namespace parkway::proxy {
namespace {

std::shared_ptr<const std::string> Encode(const google::protobuf::Message& message) {
  return std::make_shared<const std::string>(message.SerializeAsString());
}

std::string AddressOf(const EngineEndpoint& engine) {
  const bool here = !engine.unix_path().empty() && engine.machine() == MachineIdentity();
  return here ? absl::StrCat("unix:", engine.unix_path()) : engine.address();
}

}  // namespace

std::string MissingExtensions(const std::string& here, const std::string& there) {
  if (here.empty() || there.empty()) return "";
  const std::set<absl::string_view> has = absl::StrSplit(there, ' ', absl::SkipWhitespace());
  std::vector<absl::string_view> missing;
  for (absl::string_view feature : absl::StrSplit(here, ' ', absl::SkipWhitespace())) {
    if (has.contains(feature)) continue;
    for (absl::string_view family : {"sse", "ssse", "avx", "fma", "f16c", "amx", "sve", "asimd"}) {
      if (absl::StartsWith(feature, family)) missing.push_back(feature);
    }
  }
  return absl::StrJoin(missing, ", ");
}

// The two links of one engine. Made again and again until both are there; once one breaks it is over. The operations'
// link comes first: an engine takes the other only from whom it serves.
class LeaseHosts::Connection : public std::enable_shared_from_this<Connection> {
 public:
  struct Events {
    std::function<void(const EngineHello&)> up;
    std::function<void(const parkway::Events&)> events;
    std::function<void(const absl::Status&)> broken;
  };
  Connection(Options& options, EngineEndpoint engine, ProxyHello hello, Events events)
      : options_(options), engine_(std::move(engine)), hello_(std::move(hello)), events_(std::move(events)) {}

  void Start() { Connect(/*control=*/false); }
  // No event comes any more.
  void Stop() {
    stopped_ = true;
    operations_.reset();
    control_.reset();
  }
  void Send(fabric::Frame frame) {
    if (operations_ != nullptr) operations_->Send(std::move(frame));
  }
  void SendControl(fabric::Frame frame) {
    if (control_ != nullptr) control_->Send(std::move(frame));
  }

 private:
  void Connect(bool control) {
    fabric::LinkHandlers handlers;
    handlers.on_message = [weak = weak_from_this(), executor = options_.executor](std::string_view message) {
      parkway::Events events;
      if (!events.ParseFromArray(message.data(), static_cast<int>(message.size()))) {
        LOG(ERROR) << "an engine sent something that is no event; it is left out";
        return;
      }
      executor->Post([weak, events = std::move(events)] {
        if (auto self = weak.lock(); self != nullptr && !self->stopped_) self->OnEvents(events);
      });
    };
    handlers.on_closed = [weak = weak_from_this(), executor = options_.executor](absl::Status why) {
      executor->Post([weak, why = std::move(why)] {
        if (auto self = weak.lock(); self != nullptr && !self->stopped_) self->OnClosed(why);
      });
    };
    options_.connect(AddressOf(engine_), std::move(handlers),
                     [weak = weak_from_this(), control,
                      executor = options_.executor](absl::StatusOr<std::unique_ptr<fabric::Link>> link) {
                       executor->Post([weak, control, link = std::move(link)]() mutable {
                         auto self = weak.lock();
                         if (self != nullptr && !self->stopped_) self->OnConnected(control, std::move(link));
                       });
                     });
  }

  void OnConnected(bool control, absl::StatusOr<std::unique_ptr<fabric::Link>> link) {
    if (!link.ok()) {
      if (operations_ != nullptr) return OnClosed(link.status());
      if (options_.executor->Now() - said_ > limits::kWaitLogPeriod) {
        said_ = options_.executor->Now();
        LOG(WARNING) << "can't reach the engine at " << AddressOf(engine_) << " yet: " << link.status().message();
      }
      options_.executor->After(limits::kRetryPeriod, [weak = weak_from_this()] {
        if (auto self = weak.lock(); self != nullptr && !self->stopped_) self->Start();
      });
      return;
    }
    hello_.set_control(control);
    (*link)->Send(Encode(hello_));
    if (!control) {
      operations_ = *std::move(link);
    } else {
      control_ = *std::move(link);
      events_.up(engine_hello_);
    }
  }

  void OnEvents(const parkway::Events& events) {
    if (!events.has_hello()) return events_.events(events);
    if (greeted_) return;  // the control link's
    greeted_ = true;
    engine_hello_ = events.hello();
    Connect(/*control=*/true);
  }

  void OnClosed(const absl::Status& why) {
    Stop();
    events_.broken(why);
  }

  Options& options_;
  const EngineEndpoint engine_;
  ProxyHello hello_;
  Events events_;
  EngineHello engine_hello_;
  bool greeted_ = false;
  bool stopped_ = false;
  absl::Time said_ = absl::InfinitePast();
  std::unique_ptr<fabric::Link> operations_;
  std::unique_ptr<fabric::Link> control_;

  friend class LeaseHosts;
  class CoreLink;
};

// What the core holds of it.
class LeaseHosts::Connection::CoreLink : public runtime::EngineLink {
 public:
  explicit CoreLink(std::shared_ptr<Connection> connection) : connection_(std::move(connection)) {}
  void Send(fabric::Frame operation) override { connection_->Send(std::move(operation)); }
  void SendControl(fabric::Frame operation) override { connection_->SendControl(std::move(operation)); }

 private:
  std::shared_ptr<Connection> connection_;
};

LeaseHosts::LeaseHosts(Options options)
    : options_(std::move(options)),
      hosts_(options_.core->topology().hosts().size()),
      slices_(options_.core->topology().slices().size()) {}

LeaseHosts::~LeaseHosts() {
  *alive_ = false;
  for (HostEntry& entry : hosts_) {
    if (entry.connection != nullptr) entry.connection->Stop();
  }
}

void LeaseHosts::OnPlacement(const Placement& placement) {
  LogSlices(placement);
  placement_ = placement;
  if (placement.lease() != lease_) {
    lease_ = placement.lease();
    for (size_t host = 0; host < hosts_.size(); ++host) {
      if (hosts_[host].incarnation == 0) continue;
      Lose(static_cast<int>(host), absl::UnavailableError("the manager ended the lease"), /*returns=*/true);
    }
  }
  const auto& slices = options_.core->topology().slices();
  int first = 0;  // host of the slice
  for (size_t s = 0; s < slices.size(); first += slices[s++].hosts) {
    for (const PlacedSlice& slice : placement.slices()) {
      if (slice.index() != static_cast<int>(s)) continue;
      for (int h = 0; h < slice.hosts_size() && h < slices[s].hosts; ++h) OnHost(first + h, placement, slice.hosts(h));
    }
  }
}

void LeaseHosts::OnHost(int host, const Placement& placement, const PlacedHost& placed) {
  HostEntry& entry = hosts_[host];
  if (!placed.up()) {
    if (!placed.has_cause()) return;  // it starts for the first time
    return Lose(host, FromProto(placed.cause()), placed.returns());
  }
  if (entry.incarnation == placed.engine().incarnation()) return;
  if (entry.incarnation != 0) Lose(host, absl::UnavailableError("its engine was started again"), /*returns=*/true);
  const uint64_t incarnation = placed.engine().incarnation();
  entry.incarnation = incarnation;
  ProxyHello hello;
  hello.set_token(placement.token());
  hello.set_lease(placement.lease());
  hello.set_host(host);
  for (int id : options_.core->topology().hosts()[host].devices) hello.add_devices(id);
  hello.set_machine(MachineIdentity());
  auto connection = std::make_shared<Connection>(options_, placed.engine(), std::move(hello), Connection::Events{});
  connection->events_ = {
      .up =
          [this, host, incarnation, weak = std::weak_ptr(connection)](const EngineHello& engine) {
            LOG(INFO) << "connected with the engine of host " << host << ": " << engine.engine() << ", process "
                      << engine.pid();
            const std::string missing = MissingExtensions(CpuFeatures(), engine.cpu_features());
            LOG_IF(WARNING, !missing.empty())
                << "the processor of host " << host << " has no " << missing
                << ", for which programs are compiled on this machine and which may crash there: start the proxy with "
                   "--xla_cpu_max_isa and what all hosts have, such as AVX2 or SSE4_2";
            EngineHello known = engine;
            known.set_incarnation(incarnation);
            options_.core->OnEngineUp(host, known, std::make_unique<Connection::CoreLink>(weak.lock()));
          },
      .events = [this, host,
                 incarnation](const parkway::Events& events) { options_.core->OnEvents(host, incarnation, events); },
      .broken = [this, host, incarnation](const absl::Status& why) { OnBroken(host, incarnation, why); },
  };
  entry.connection = connection;
  connection->Start();
}

void LeaseHosts::Lose(int host, absl::Status cause, bool returns) {
  HostEntry& entry = hosts_[host];
  if (entry.cause_timer != 0) options_.executor->Cancel(entry.cause_timer);
  entry.cause_timer = 0;
  if (entry.connection != nullptr) entry.connection->Stop();
  entry.connection = nullptr;
  const uint64_t incarnation = std::exchange(entry.incarnation, 0);
  if (incarnation == 0 && entry.down_cause == cause && entry.returns == returns) return;
  // Also for one that is down already: the cause may be known now, or whether it comes back.
  entry.down_cause = cause;
  entry.returns = returns;
  options_.core->OnEngineDown(host, incarnation, std::move(cause), returns);
}

void LeaseHosts::OnBroken(int host, uint64_t incarnation, const absl::Status& why) {
  HostEntry& entry = hosts_[host];
  if (entry.incarnation != incarnation || entry.cause_timer != 0) return;
  LOG(WARNING) << "the connection with the engine of host " << host << " broke: " << why.message();
  entry.cause_timer = options_.executor->After(limits::kCauseWait, [this, host, why, alive = alive_] {
    if (!*alive) return;
    hosts_[host].cause_timer = 0;
    Lose(host, Annotate(why, "the connection with its engine broke"), /*returns=*/true);
    OnPlacement(Placement(placement_));  // as far as the manager knows the engine is up: try again
  });
}

void LeaseHosts::LogSlices(const Placement& placement) {
  if (placement.waiting_for() != waiting_for_) {
    waiting_for_ = placement.waiting_for();
    if (!waiting_for_.empty()) LOG(INFO) << "placement: waiting for " << waiting_for_;
  }
  std::vector<std::string> now(slices_.size());
  for (const PlacedSlice& slice : placement.slices()) {
    if (slice.index() < 0 || slice.index() >= static_cast<int>(now.size())) continue;
    std::string& name = now[slice.index()];
    name = slice.slice();
    if (name == slices_[slice.index()]) continue;
    std::vector<std::string> workers;
    for (const PlacedHost& host : slice.hosts()) workers.push_back(host.worker());
    LOG(INFO) << "Transition slice " << slice.index() << ": unplaced -> placed on " << name << ", worker pods: ["
              << absl::StrJoin(workers, ", ") << "]";
  }
  for (size_t i = 0; i < now.size(); ++i) {
    if (now[i].empty() && !slices_[i].empty()) LOG(INFO) << "Transition slice " << i << ": it is no longer placed";
  }
  slices_ = std::move(now);
}

}  // namespace parkway::proxy
