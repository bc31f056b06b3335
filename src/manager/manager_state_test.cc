#include "manager/manager_state.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>

#include "absl/strings/str_cat.h"
#include "base/limits.h"
#include "base/status_wire.h"
#include "manager/slice_type.h"

namespace parkway::manager {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

// A cluster in one thread: workers and proxies are streams, and what the manager sends them is kept here.
class Cluster : public ManagerOutput {
 public:
  explicit Cluster(const char* type = "cpu:1x2", int slices = 2) : type_(type), slices_(slices) { Restart(); }

  // The same, with the record of the one before.
  void RestartWithRecord() {
    record_ = saved();
    Restart();
  }
  const ManagerRecord& saved() {
    executor_.Advance(absl::ZeroDuration());
    return saved_;
  }
  void set_type(const char* type) { type_ = type; }

  // The manager starts (anew); all its streams are gone.
  void Restart() {
    state_.reset();
    ManagerStateOptions options;
    if (*type_) options.expected_type = *ParseSliceType(type_);
    options.expected_slices = slices_;
    options.random = [this] { return next_random_++; };
    options.record = record_;
    options.save = [this](const ManagerRecord& record) { saved_ = record; };
    state_ = std::make_unique<ManagerState>(&executor_, options, this);
    ended_.clear();
    open_.clear();
  }

  void ToWorker(StreamId stream, const ManagerToWorker& message) override { to_worker_[stream].push_back(message); }
  void ToProxy(StreamId stream, const ManagerToProxy& message) override { to_proxy_[stream].push_back(message); }
  void End(StreamId stream, const absl::Status& why) override {
    ended_[stream] = why;
    open_.erase(stream);
  }

  // ---- Workers.
  static WorkerHello Hello(const std::string& name, int devices = 2) {
    WorkerHello hello;
    hello.set_name(name);
    hello.set_incarnation(1);
    hello.set_address("10.0.0.1");
    hello.set_platform("cpu");
    hello.set_devices(devices);
    hello.set_pid(4711);
    return hello;
  }
  StreamId Join(const WorkerHello& hello) {
    const StreamId stream = ++next_stream_;
    open_[stream] = true;
    state_->OnWorkerOpened(stream);
    WorkerMessage message;
    *message.mutable_hello() = hello;
    state_->OnWorker(stream, message);
    return stream;
  }
  StreamId Join(const std::string& name) { return Join(Hello(name)); }
  void EngineUp(StreamId stream, uint64_t lease, uint64_t incarnation) {
    WorkerMessage message;
    *message.mutable_engine() = Engine(lease, incarnation);
    state_->OnWorker(stream, message);
  }
  static EngineState Engine(uint64_t lease, uint64_t incarnation) {
    EngineState engine;
    engine.set_lease(lease);
    engine.set_up(true);
    engine.mutable_endpoint()->set_incarnation(incarnation);
    engine.mutable_endpoint()->set_address(absl::StrCat("10.0.0.1:", 1000 + incarnation));
    return engine;
  }
  void EngineDown(StreamId stream, uint64_t lease, const std::string& why) {
    WorkerMessage message;
    message.mutable_engine()->set_lease(lease);
    *message.mutable_engine()->mutable_cause() = ToProto(absl::UnavailableError(why));
    state_->OnWorker(stream, message);
  }
  Seat SeatOf(StreamId stream) {
    for (const auto& message : to_worker_[stream]) {
      if (message.has_seat()) return message.seat();
    }
    return {};
  }
  absl::Status Refusal(StreamId stream) {
    for (const auto& message : to_worker_[stream]) {
      if (message.has_refused()) return FromProto(message.refused());
    }
    return absl::OkStatus();
  }
  // Words for what came since the last call, but seats and heartbeats: "start 1", "stop 1", "restart 1 #7".
  std::vector<std::string> Orders(StreamId stream) {
    std::vector<std::string> orders;
    for (const auto& m : to_worker_[stream]) {
      if (m.has_start()) orders.push_back(absl::StrCat("start ", m.start().lease()));
      if (m.has_stop()) orders.push_back(absl::StrCat("stop ", m.stop().lease()));
      if (m.has_restart())
        orders.push_back(absl::StrCat("restart ", m.restart().lease(), " #", m.restart().incarnation()));
    }
    to_worker_[stream].clear();
    return orders;
  }

  // ---- Proxies.
  static LeaseRequest Wants(const std::string& types) {
    LeaseRequest request;
    const auto parsed = *ParseSliceTypes(types);
    for (const SliceType& type : parsed) *request.add_slices() = type;
    request.set_owner("head:29000");
    return request;
  }
  StreamId Lease(const LeaseRequest& request) {
    const StreamId stream = ++next_stream_;
    open_[stream] = false;
    state_->OnProxyOpened(stream);
    ProxyMessage message;
    *message.mutable_request() = request;
    state_->OnProxy(stream, message);
    return stream;
  }
  StreamId Lease(const std::string& types) { return Lease(Wants(types)); }
  int Placements(StreamId stream) { return static_cast<int>(to_proxy_[stream].size()); }
  // The latest one.
  Placement PlacementOf(StreamId stream) {
    auto& messages = to_proxy_[stream];
    for (auto it = messages.rbegin(); it != messages.rend(); ++it) {
      if (it->has_placement()) return it->placement();
    }
    return {};
  }
  std::vector<uint64_t> CancelsOf(StreamId stream) {
    std::vector<uint64_t> sessions;
    for (const auto& message : to_proxy_[stream]) {
      if (message.has_cancel()) sessions.push_back(message.cancel().session());
    }
    return sessions;
  }
  // "slice-0[a up #7] slice-1[b down: why]"
  std::string Hosts(StreamId stream) {
    std::string out;
    const Placement placement = PlacementOf(stream);
    for (const auto& slice : placement.slices()) {
      absl::StrAppend(&out, out.empty() ? "" : " ", slice.slice(), "[");
      for (const auto& host : slice.hosts()) {
        absl::StrAppend(&out, &host == &slice.hosts(0) ? "" : ", ", host.worker(), " ");
        if (host.up()) absl::StrAppend(&out, "up #", host.engine().incarnation());
        if (!host.up()) absl::StrAppend(&out, host.has_cause() ? "down: " + host.cause().message() : "starting");
      }
      absl::StrAppend(&out, "]");
    }
    return out;
  }

  void Close(StreamId stream, const std::string& why = "its connection broke") {
    open_.erase(stream);
    state_->OnClosed(stream, why);
  }
  // Time passes in small steps, with heartbeats of all open streams but `silent`.
  void Pass(absl::Duration time, std::set<StreamId> silent = {}) {
    for (absl::Duration t; t < time; t += absl::Milliseconds(100)) {
      executor_.Advance(absl::Milliseconds(100));
      const auto open = open_;
      for (const auto& [stream, is_worker] : open) {
        if (silent.contains(stream)) continue;
        WorkerMessage w;
        w.mutable_heartbeat()->set_number(1);
        ProxyMessage p;
        p.mutable_heartbeat()->set_number(1);
        if (is_worker) state_->OnWorker(stream, w);
        if (!is_worker) state_->OnProxy(stream, p);
      }
    }
  }
  bool Ended(StreamId stream) const { return ended_.contains(stream); }
  ManagerState& state() { return *state_; }
  SimExecutor& executor() { return executor_; }
  std::deque<ManagerToProxy>& ToProxyOf(StreamId stream) { return to_proxy_[stream]; }
  std::deque<ManagerToWorker>& ToWorkerOf(StreamId stream) { return to_worker_[stream]; }

 private:
  const char* type_;
  int slices_;
  uint64_t next_random_ = 1;
  ManagerRecord record_, saved_;
  StreamId next_stream_ = 0;
  SimExecutor executor_;
  std::map<StreamId, std::deque<ManagerToWorker>> to_worker_;
  std::map<StreamId, std::deque<ManagerToProxy>> to_proxy_;
  std::map<StreamId, absl::Status> ended_;
  std::map<StreamId, bool> open_;  // is it a worker
  std::unique_ptr<ManagerState> state_;
};

std::string SeatName(const Seat& seat) { return absl::StrCat(seat.slice(), "/", seat.host()); }

// ---- Membership ----------------------------------------------------------------------------------------------------

TEST(ManagerState, WorkersAreGroupedByArrival) {
  Cluster c("cpu:2x2", 2);
  EXPECT_EQ(SeatName(c.SeatOf(c.Join("a"))), "slice-0/0");
  EXPECT_EQ(SeatName(c.SeatOf(c.Join("b"))), "slice-0/1");
  EXPECT_EQ(SeatName(c.SeatOf(c.Join("c"))), "slice-1/0");
  ManagerStatus status = c.state().Status();
  ASSERT_EQ(status.slices_size(), 2);
  EXPECT_TRUE(status.slices(0).ready());
  EXPECT_FALSE(status.slices(1).ready());
  EXPECT_EQ(status.slices(1).workers(1).state(), "not here yet");
  c.Join("d");
  EXPECT_TRUE(c.state().Status().slices(1).ready());
}

TEST(ManagerState, WorkersThatNameTheirSliceGetIt) {
  Cluster c("cpu:2x2", 2);
  WorkerHello hello = Cluster::Hello("a");
  hello.set_slice("rack7");
  hello.set_host(1);
  EXPECT_EQ(SeatName(c.SeatOf(c.Join(hello))), "rack7/1");
  hello.set_name("b");
  EXPECT_THAT(std::string(c.Refusal(c.Join(hello)).message()), HasSubstr("host 1 of rack7"));
  hello.clear_host();
  EXPECT_EQ(SeatName(c.SeatOf(c.Join(hello))), "rack7/0");
  hello.set_name("c");
  const absl::Status full = c.Refusal(c.Join(hello));
  EXPECT_EQ(full.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(full.message()), HasSubstr("b, a"));
  hello.set_host(2);
  EXPECT_EQ(c.Refusal(c.Join(hello)).code(), absl::StatusCode::kInvalidArgument);
}

TEST(ManagerState, ASecondWorkerOfOneNameIsRefusedWhileTheFirstLives) {
  Cluster c;
  const StreamId first = c.Join("a");
  WorkerHello hello = Cluster::Hello("a");
  hello.set_incarnation(2);
  const StreamId second = c.Join(hello);
  const absl::Status refusal = c.Refusal(second);
  EXPECT_EQ(refusal.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(refusal.message()), HasSubstr("a worker named a has joined already (process 4711"));
  EXPECT_TRUE(c.Ended(second));
  EXPECT_FALSE(c.Ended(first));
  c.Close(first);
  const StreamId third = c.Join(hello);
  EXPECT_TRUE(c.Refusal(third).ok());
  EXPECT_EQ(SeatName(c.SeatOf(third)), "slice-0/0");
}

TEST(ManagerState, TheSameProcessOnANewConnectionReplacesItsOldOne) {
  Cluster c("cpu:1x2", 1);
  const StreamId first = c.Join("a");
  const StreamId proxy = c.Lease("cpu:1x2");
  const uint64_t lease = c.PlacementOf(proxy).lease();
  c.EngineUp(first, lease, 7);
  WorkerHello hello = Cluster::Hello("a");
  *hello.add_engines() = Cluster::Engine(lease, 7);
  const StreamId second = c.Join(hello);
  EXPECT_TRUE(c.Ended(first));
  EXPECT_THAT(c.Orders(second), IsEmpty());
  EXPECT_EQ(c.Hosts(proxy), "slice-0[a up #7]");
  c.Close(first);  // comes late; it is nobody's any more
  EXPECT_EQ(c.Hosts(proxy), "slice-0[a up #7]");
}

TEST(ManagerState, WorkersOfAnotherTypeAreRefused) {
  Cluster c("cpu:1x2", 1);
  const absl::Status devices = c.Refusal(c.Join(Cluster::Hello("a", 4)));
  EXPECT_THAT(std::string(devices.message()),
              HasSubstr("The newly added instance does not match with the expected instances"));
  EXPECT_THAT(std::string(devices.message()), HasSubstr("cpu:1x2"));
  WorkerHello gpu = Cluster::Hello("b");
  gpu.set_platform("gpu");
  EXPECT_EQ(c.Refusal(c.Join(gpu)).code(), absl::StatusCode::kInvalidArgument);
  c.Join(Cluster::Hello("c", 0));  // has as many as are wanted
  EXPECT_EQ(c.state().Status().slices(0).workers(0).devices(), 2);
  const absl::Status full = c.Refusal(c.Join("d"));
  EXPECT_EQ(full.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(full.message()), HasSubstr("all 1 slices"));
}

TEST(ManagerState, WithoutAnExpectedTypeEachWorkerIsASlice) {
  Cluster c("", 0);
  c.Join(Cluster::Hello("a", 4));
  c.Join(Cluster::Hello("b", 1));
  EXPECT_THAT(std::string(c.Refusal(c.Join(Cluster::Hello("c", 0))).message()), HasSubstr("--devices"));
  ManagerStatus status = c.state().Status();
  ASSERT_EQ(status.slices_size(), 2);
  EXPECT_EQ(SliceTypeName(status.slices(0).type()), "cpu:1x4");
  EXPECT_EQ(c.Hosts(c.Lease("cpu:1x1")), "slice-1[b starting]");
}

TEST(ManagerState, AReplacementTakesALostWorkersSeat) {
  Cluster c("cpu:1x2", 2);
  const StreamId a = c.Join("a");
  c.Join("b");
  c.Close(a);
  EXPECT_EQ(SeatName(c.SeatOf(c.Join("c"))), "slice-0/0");
  EXPECT_FALSE(c.Refusal(c.Join("a")).ok());  // its seat is taken now
}

TEST(ManagerState, MalformedHellosAreRefused) {
  Cluster c;
  EXPECT_EQ(c.Refusal(c.Join("")).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(c.Refusal(c.Join(std::string(10000, 'x'))).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(c.Refusal(c.Join(Cluster::Hello("a", -1))).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(c.Refusal(c.Join(Cluster::Hello("a", 1 << 30))).code(), absl::StatusCode::kInvalidArgument);
  c.state().OnWorkerOpened(1000);
  c.state().OnWorker(1000, WorkerMessage());
  EXPECT_TRUE(c.Ended(1000));
  const StreamId a = c.Join("a");
  WorkerMessage again;
  *again.mutable_hello() = Cluster::Hello("a");
  c.state().OnWorker(a, again);
  EXPECT_TRUE(c.Ended(a));
  EXPECT_FALSE(c.state().Status().slices(0).ready());
}

TEST(ManagerState, HeartbeatsAreAnswered) {
  Cluster c;
  const StreamId a = c.Join("a");
  WorkerMessage message;
  message.mutable_heartbeat()->set_number(42);
  c.state().OnWorker(a, message);
  EXPECT_EQ(c.ToWorkerOf(a).back().heartbeat().number(), 42u);
}

// ---- Health ------------------------------------------------------------------------------------------------------

TEST(ManagerState, ASilentWorkerIsLostWithinThreeSeconds) {
  Cluster c("cpu:1x2", 1);
  const StreamId a = c.Join("a");
  const StreamId proxy = c.Lease("cpu:1x2");
  c.EngineUp(a, c.PlacementOf(proxy).lease(), 7);
  c.Pass(absl::Seconds(20));
  EXPECT_EQ(c.Hosts(proxy), "slice-0[a up #7]");
  c.Pass(absl::Seconds(3), {a});
  EXPECT_THAT(c.Hosts(proxy), HasSubstr("slice-0[a down: worker a (host 0 of slice-0) is lost: no heartbeat for 2.5s"));
  EXPECT_TRUE(c.Ended(a));
  EXPECT_THAT(c.state().Status().slices(0).workers(0).state(), HasSubstr("lost: no heartbeat"));
}

TEST(ManagerState, AWorkerWhoseStreamBreaksIsLostAtOnce) {
  Cluster c("cpu:1x2", 1);
  const StreamId a = c.Join("a");
  const StreamId proxy = c.Lease("cpu:1x2");
  c.EngineUp(a, c.PlacementOf(proxy).lease(), 7);
  c.Close(a);
  EXPECT_EQ(c.Hosts(proxy), "slice-0[a down: worker a (host 0 of slice-0) is lost: its connection broke]");
}

TEST(ManagerState, ALostWorkerComesBackWithANewEngine) {
  Cluster c("cpu:1x2", 1);
  const StreamId a = c.Join("a");
  const StreamId proxy = c.Lease("cpu:1x2");
  const uint64_t lease = c.PlacementOf(proxy).lease();
  c.EngineUp(a, lease, 7);
  c.Close(a);
  WorkerHello hello = Cluster::Hello("a");
  hello.set_incarnation(2);
  const StreamId again = c.Join(hello);
  EXPECT_THAT(c.Orders(again), testing::ElementsAre(absl::StrCat("start ", lease)));
  EXPECT_THAT(c.Hosts(proxy), HasSubstr("down"));
  c.EngineUp(again, lease, 8);
  EXPECT_EQ(c.Hosts(proxy), "slice-0[a up #8]");
}

TEST(ManagerState, AThawedWorkersEngineIsStartedAnew) {
  Cluster c("cpu:1x2", 1);
  const StreamId a = c.Join("a");
  const StreamId proxy = c.Lease("cpu:1x2");
  const uint64_t lease = c.PlacementOf(proxy).lease();
  c.EngineUp(a, lease, 7);
  c.Pass(absl::Seconds(3), {a});
  WorkerHello hello = Cluster::Hello("a");
  *hello.add_engines() = Cluster::Engine(lease, 7);
  const StreamId again = c.Join(hello);
  EXPECT_THAT(c.Orders(again), testing::ElementsAre(absl::StrCat("restart ", lease, " #7")));
  EXPECT_THAT(c.Hosts(proxy), HasSubstr("down"));
  c.EngineDown(again, lease, "restarted");
  c.EngineUp(again, lease, 8);
  EXPECT_EQ(c.Hosts(proxy), "slice-0[a up #8]");
}

TEST(ManagerState, AManagerThatStoodStillBlamesNobody) {
  Cluster c("cpu:1x2", 1);
  const StreamId a = c.Join("a");
  const StreamId proxy = c.Lease("cpu:1x2");
  // A clock whose timers come late, as after SIGSTOP.
  class Late : public SimExecutor {
   public:
    absl::Time Now() const override { return SimExecutor::Now() + skew; }
    absl::Duration skew;
  } late;
  ManagerStateOptions options;
  options.expected_type = *ParseSliceType("cpu:1x2");
  options.random = [] { return uint64_t{1}; };
  ManagerState state(&late, options, &c);
  state.OnWorkerOpened(500);
  WorkerMessage hello;
  *hello.mutable_hello() = Cluster::Hello("z");
  state.OnWorker(500, hello);
  late.skew = absl::Seconds(60);
  late.Advance(absl::Seconds(1));
  EXPECT_FALSE(c.Ended(500));
  late.Advance(absl::Seconds(3));
  EXPECT_TRUE(c.Ended(500));
  EXPECT_FALSE(c.Ended(a));
  EXPECT_FALSE(c.Ended(proxy));
}

TEST(ManagerState, AStreamThatNeverSaysWhoItIsIsEnded) {
  Cluster c;
  c.state().OnWorkerOpened(500);
  c.state().OnProxyOpened(501);
  c.Pass(absl::Seconds(11));
  EXPECT_TRUE(c.Ended(500));
  EXPECT_TRUE(c.Ended(501));
}

// ---- Leases ------------------------------------------------------------------------------------------------------

TEST(ManagerState, VirtualSlicesFollowTheNamesWhateverCameFirst) {
  Cluster c("cpu:1x2", 11);
  for (int number : {10, 2, 0}) {
    WorkerHello hello = Cluster::Hello(absl::StrCat("w", number));
    hello.set_slice(absl::StrCat("slice-", number));
    c.Join(hello);
  }
  EXPECT_EQ(c.Hosts(c.Lease("cpu:1x2,cpu:1x2,cpu:1x2")),
            "slice-0[w0 starting] slice-2[w2 starting] slice-10[w10 starting]");
}

TEST(ManagerState, ALeaseGetsAllItsSlicesOrNone) {
  Cluster c("cpu:2x2", 2);
  const StreamId proxy = c.Lease("cpu:2x2,cpu:2x2");
  EXPECT_THAT(c.PlacementOf(proxy).slices(), IsEmpty());
  EXPECT_EQ(c.PlacementOf(proxy).waiting_for(), "2 x cpu:2x2 (0 free, 0 leased, 2 not ready)");
  const StreamId a = c.Join("a");
  c.Join("b");
  EXPECT_EQ(c.PlacementOf(proxy).waiting_for(), "2 x cpu:2x2 (1 free, 0 leased, 1 not ready)");
  EXPECT_THAT(c.Orders(a), IsEmpty());
  c.Join("c");
  c.Join("d");
  EXPECT_EQ(c.Hosts(proxy), "slice-0[a starting, b starting] slice-1[c starting, d starting]");
  const Placement placement = c.PlacementOf(proxy);
  EXPECT_EQ(placement.token().size(), 16u);
  EXPECT_EQ(placement.slices(1).index(), 1);
  EXPECT_THAT(c.Orders(a), testing::ElementsAre(absl::StrCat("start ", placement.lease())));
  EXPECT_THAT(placement.waiting_for(), IsEmpty());
}

TEST(ManagerState, FirstComeFirstServed) {
  Cluster c("cpu:1x2", 2);
  const StreamId a = c.Join("a");
  const StreamId large = c.Lease("cpu:1x2,cpu:1x2");
  const StreamId small = c.Lease("cpu:1x2");
  EXPECT_EQ(c.Hosts(small), "");  // the free slice is kept for the first
  EXPECT_THAT(c.PlacementOf(small).waiting_for(), HasSubstr("behind 1 earlier"));
  c.Join("b");
  EXPECT_EQ(c.Hosts(large), "slice-0[a starting] slice-1[b starting]");
  EXPECT_EQ(c.Hosts(small), "");
  EXPECT_EQ(c.PlacementOf(small).waiting_for(), "1 x cpu:1x2 (0 free, 2 leased, 0 not ready)");
  c.Orders(a);
  const uint64_t lease = c.PlacementOf(large).lease();
  c.Close(large);
  EXPECT_EQ(c.Hosts(small), "slice-0[a starting]");
  EXPECT_THAT(c.Orders(a),
              testing::ElementsAre(absl::StrCat("stop ", lease), absl::StrCat("start ", c.PlacementOf(small).lease())));
}

TEST(ManagerState, ALeaseThatCanNeverBeMetWaitsAndHoldsNobodyUp) {
  Cluster c("cpu:1x2", 2);
  c.Join("a");
  const StreamId gpu = c.Lease("gpu:1x8");
  EXPECT_EQ(
      c.PlacementOf(gpu).waiting_for(),
      "1 x gpu:1x8 (0 free, 0 leased, 0 not ready), which this cluster never has: it has 0 of them and expects 2 x "
      "cpu:1x2");
  const StreamId many = c.Lease("cpu:1x2,cpu:1x2,cpu:1x2");
  EXPECT_THAT(c.PlacementOf(many).waiting_for(), HasSubstr("never has"));
  EXPECT_EQ(c.Hosts(c.Lease("cpu:1x2")), "slice-0[a starting]");
}

TEST(ManagerState, MalformedRequestsAreRefused) {
  Cluster c;
  auto refused = [&](const LeaseRequest& request) {
    const StreamId stream = c.Lease(request);
    EXPECT_TRUE(c.Ended(stream));
    return FromProto(c.ToProxyOf(stream).back().refused()).code();
  };
  EXPECT_EQ(refused(LeaseRequest()), absl::StatusCode::kInvalidArgument);
  LeaseRequest empty_type;
  empty_type.add_slices();
  EXPECT_EQ(refused(empty_type), absl::StatusCode::kInvalidArgument);
  LeaseRequest many = Cluster::Wants("cpu:1x2");
  for (int i = 0; i < limits::kMaxSlicesPerLease; ++i) *many.add_slices() = many.slices(0);
  EXPECT_EQ(refused(many), absl::StatusCode::kInvalidArgument);

  c.Join("a");
  c.Join("b");
  const StreamId twice = c.Lease("cpu:1x2");
  ProxyMessage message;
  *message.mutable_request() = Cluster::Wants("cpu:1x2");
  c.state().OnProxy(twice, message);
  EXPECT_TRUE(c.Ended(twice));
  EXPECT_THAT(c.state().Status().leases(), IsEmpty());
}

TEST(ManagerState, ALeaseEndsWhenItsProxyIsSilent) {
  Cluster c("cpu:1x2", 1);
  const StreamId a = c.Join("a");
  const StreamId proxy = c.Lease("cpu:1x2");
  const StreamId next = c.Lease("cpu:1x2");
  c.Pass(absl::Seconds(9), {proxy});
  EXPECT_EQ(c.Hosts(next), "");
  c.Pass(absl::Seconds(2), {proxy});
  EXPECT_EQ(c.Hosts(next), "slice-0[a starting]");
  EXPECT_FALSE(c.Ended(a));
}

TEST(ManagerState, VirtualSlicesAreBoundInTheOrderOfNames) {
  Cluster c("cpu:1x2", 3);
  for (const char* slice : {"slice-10", "slice-2", "slice-1"}) {
    WorkerHello hello = Cluster::Hello(absl::StrCat("of-", slice));
    hello.set_slice(slice);
    c.Join(hello);
  }
  const Placement placed = c.PlacementOf(c.Lease("cpu:1x2,cpu:1x2,cpu:1x2"));
  ASSERT_EQ(placed.slices_size(), 3);
  EXPECT_EQ(placed.slices(0).slice(), "slice-1");
  EXPECT_EQ(placed.slices(1).slice(), "slice-2");
  EXPECT_EQ(placed.slices(2).slice(), "slice-10");
}

TEST(ManagerState, AWaitingLeaseThatEndsIsForgotten) {
  Cluster c("cpu:1x2", 1);
  const StreamId gone = c.Lease("cpu:1x2");
  const StreamId next = c.Lease("cpu:1x2");
  c.Close(gone);
  c.Join("a");
  EXPECT_EQ(c.Hosts(next), "slice-0[a starting]");
  EXPECT_EQ(c.state().Status().leases_size(), 1);
}

TEST(ManagerState, ASliceThatIsNotWholeIsNotLeased) {
  Cluster c("cpu:2x2", 1);
  const StreamId a = c.Join("a");
  c.Join("b");
  c.Close(a);
  const StreamId proxy = c.Lease("cpu:2x2");
  EXPECT_EQ(c.Hosts(proxy), "");
  WorkerHello hello = Cluster::Hello("a");
  hello.set_incarnation(2);
  c.Join(hello);
  EXPECT_EQ(c.Hosts(proxy), "slice-0[a starting, b starting]");
}

TEST(ManagerState, ReportsAreInTheStatus) {
  Cluster c("cpu:1x2", 1);
  c.Join("a");
  const StreamId proxy = c.Lease("cpu:1x2");
  ProxyMessage message;
  message.mutable_report()->set_programs_run(12);
  c.state().OnProxy(proxy, message);
  const ManagerStatus status = c.state().Status();
  ASSERT_EQ(status.leases_size(), 1);
  EXPECT_EQ(status.leases(0).report().programs_run(), 12u);
  EXPECT_EQ(status.leases(0).owner(), "head:29000");
  EXPECT_TRUE(status.leases(0).placed());
  EXPECT_EQ(status.slices(0).workers(0).state(), "leased");
}

TEST(ManagerState, ACancelGoesToTheProxyOfThatLease) {
  Cluster c("cpu:1x2", 2);
  c.Join("a");
  c.Join("b");
  const StreamId first = c.Lease("cpu:1x2"), second = c.Lease("cpu:1x2");
  CancelRequest request;
  request.set_lease_epoch(c.state().Status().leases(1).epoch());
  request.mutable_what()->set_session(3);
  EXPECT_EQ(c.state().Cancel(request), absl::OkStatus());
  EXPECT_EQ(c.CancelsOf(first).size() + c.CancelsOf(second).size(), 1u);
  c.Close(first);
  c.Close(second);
  EXPECT_TRUE(absl::IsNotFound(c.state().Cancel(request)));
}

// ---- Engines -----------------------------------------------------------------------------------------------------

TEST(ManagerState, AnEnginesDeathIsToldWithItsCause) {
  Cluster c("cpu:2x2", 1);
  const StreamId a = c.Join("a");
  const StreamId b = c.Join("b");
  const StreamId proxy = c.Lease("cpu:2x2");
  const uint64_t lease = c.PlacementOf(proxy).lease();
  c.EngineUp(a, lease, 7);
  c.EngineUp(b, lease, 8);
  EXPECT_EQ(c.Hosts(proxy), "slice-0[a up #7, b up #8]");
  c.EngineDown(b, lease, "killed by signal 9");
  EXPECT_EQ(c.Hosts(proxy), "slice-0[a up #7, b down: killed by signal 9]");
  c.EngineUp(b, lease, 9);
  EXPECT_EQ(c.Hosts(proxy), "slice-0[a up #7, b up #9]");
}

TEST(ManagerState, EnginesOfEndedLeasesAreNobodys) {
  Cluster c("cpu:1x2", 1);
  const StreamId a = c.Join("a");
  const StreamId first = c.Lease("cpu:1x2");
  const uint64_t old = c.PlacementOf(first).lease();
  c.Close(first);
  const StreamId second = c.Lease("cpu:1x2");
  c.EngineUp(a, old, 7);
  EXPECT_EQ(c.Hosts(second), "slice-0[a starting]");
}

TEST(ManagerState, AProxyRestartsItsOwnEnginesOnly) {
  Cluster c("cpu:1x2", 2);
  const StreamId a = c.Join("a");
  const StreamId b = c.Join("b");
  const StreamId first = c.Lease("cpu:1x2");
  const StreamId second = c.Lease("cpu:1x2");
  c.EngineUp(a, c.PlacementOf(first).lease(), 7);
  c.EngineUp(b, c.PlacementOf(second).lease(), 8);
  c.Orders(a);
  c.Orders(b);
  auto restart = [&](StreamId proxy, uint64_t incarnation) {
    ProxyMessage message;
    message.mutable_restart()->set_lease(c.PlacementOf(second).lease());  // whatever it says
    message.mutable_restart()->set_incarnation(incarnation);
    c.state().OnProxy(proxy, message);
  };
  restart(first, 8);
  restart(first, 6);
  EXPECT_THAT(c.Orders(b), IsEmpty());
  restart(first, 7);
  EXPECT_THAT(c.Orders(a), testing::ElementsAre(absl::StrCat("restart ", c.PlacementOf(first).lease(), " #7")));
  EXPECT_THAT(c.Orders(b), IsEmpty());
}

TEST(ManagerState, AWorkerThatLeavesSaysSo) {
  Cluster c("cpu:1x2", 1);
  const StreamId a = c.Join("a");
  const StreamId proxy = c.Lease("cpu:1x2");
  c.EngineUp(a, c.PlacementOf(proxy).lease(), 7);
  WorkerMessage bye;
  bye.mutable_goodbye()->set_reason("SIGTERM");
  c.state().OnWorker(a, bye);
  EXPECT_THAT(c.Hosts(proxy), HasSubstr("is lost: it left: SIGTERM"));
  EXPECT_TRUE(c.Ended(a));
}

TEST(ManagerState, AnEngineOfAnUnknownLeaseIsStopped) {
  Cluster c("cpu:1x2", 1);
  c.Pass(limits::kManagerResumeWindow + absl::Seconds(1));
  WorkerHello hello = Cluster::Hello("a");
  *hello.add_engines() = Cluster::Engine(99, 7);
  EXPECT_THAT(c.Orders(c.Join(hello)), testing::ElementsAre("stop 99"));
}

// ---- A manager that starts anew ------------------------------------------------------------------------------------

// Two slices, leased by one proxy, engines up; then the manager is gone. `hellos` is what the workers say to the next
// one.
struct Restarted {
  explicit Restarted(Cluster& c) {
    const StreamId a = c.Join("a");
    const StreamId b = c.Join("b");
    const StreamId proxy = c.Lease("cpu:1x2,cpu:1x2");
    held = c.PlacementOf(proxy);
    c.EngineUp(a, held.lease(), 7);
    c.EngineUp(b, held.lease(), 8);
    held = c.PlacementOf(proxy);
    for (const auto& [stream, name, engine] : {std::tuple{a, "a", 7}, std::tuple{b, "b", 8}}) {
      WorkerHello hello = Cluster::Hello(name);
      *hello.mutable_last_seat() = c.SeatOf(stream);
      *hello.add_engines() = Cluster::Engine(held.lease(), engine);
      hellos.push_back(hello);
    }
    request = Cluster::Wants("cpu:1x2,cpu:1x2");
    *request.mutable_held() = held;
    c.Restart();
  }
  Placement held;
  std::vector<WorkerHello> hellos;
  LeaseRequest request;
};

TEST(ManagerStateRestart, TheLeaseGoesOnInWhateverOrderAllComeBack) {
  for (const std::string order : {"abp", "bap", "apb", "bpa", "pab", "pba"}) {
    Cluster c;
    Restarted r(c);
    StreamId a = 0, b = 0, proxy = 0;
    for (char who : order) {
      if (who == 'a') a = c.Join(r.hellos[0]);
      if (who == 'b') b = c.Join(r.hellos[1]);
      if (who == 'p') proxy = c.Lease(r.request);
      if (who == 'p' && (a == 0 || b == 0)) {
        EXPECT_EQ(c.Placements(proxy), 0) << order;
      }
      c.Pass(absl::Seconds(1));
    }
    EXPECT_EQ(c.Hosts(proxy), "slice-0[a up #7] slice-1[b up #8]") << order;
    EXPECT_EQ(c.PlacementOf(proxy).lease(), r.held.lease());
    EXPECT_EQ(c.PlacementOf(proxy).token(), r.held.token());
    c.Pass(absl::Seconds(20));
    EXPECT_EQ(c.Hosts(proxy), "slice-0[a up #7] slice-1[b up #8]") << order;
    EXPECT_THAT(c.Orders(a), IsEmpty()) << order;
    EXPECT_THAT(c.Orders(b), IsEmpty()) << order;
  }
}

TEST(ManagerStateRestart, AWorkerThatDoesNotComeBackIsDownWhenTheWindowEnds) {
  Cluster c;
  Restarted r(c);
  const StreamId proxy = c.Lease(r.request);
  c.Join(r.hellos[0]);
  c.Pass(limits::kManagerResumeWindow - absl::Seconds(1));
  EXPECT_EQ(c.Hosts(proxy), "");
  c.Pass(absl::Seconds(2));
  EXPECT_EQ(c.Hosts(proxy), "slice-0[a up #7] slice-1[b down: worker b did not come back after the manager's restart]");
  // Later it must not come up with the engine that was given up.
  const StreamId b = c.Join(r.hellos[1]);
  c.EngineUp(b, r.held.lease(), 9);
  EXPECT_EQ(c.Hosts(proxy), "slice-0[a up #7] slice-1[b up #9]");
}

TEST(ManagerStateRestart, AnEngineThatEndedMeanwhileIsDownWithACause) {
  for (bool worker_first : {true, false}) {
    Cluster c;
    Restarted r(c);
    r.hellos[1].clear_engines();
    r.hellos[1].set_incarnation(2);
    StreamId b = worker_first ? c.Join(r.hellos[1]) : 0;
    const StreamId proxy = c.Lease(r.request);
    if (b == 0) b = c.Join(r.hellos[1]);
    c.Join(r.hellos[0]);
    EXPECT_EQ(c.Hosts(proxy),
              "slice-0[a up #7] slice-1[b down: the engine of worker b (host 0 of slice-1) ended while no manager was "
              "there]");
    EXPECT_THAT(c.Orders(b), testing::ElementsAre(absl::StrCat("start ", r.held.lease())));
  }
}

TEST(ManagerStateRestart, EnginesWhoseProxyIsGoneAreStoppedWhenTheWindowEnds) {
  Cluster c;
  Restarted r(c);
  const StreamId a = c.Join(r.hellos[0]);
  const StreamId b = c.Join(r.hellos[1]);
  const StreamId other = c.Lease("cpu:1x2");
  EXPECT_EQ(c.Hosts(other), "");  // the old lease may still be asked for
  c.Pass(limits::kManagerResumeWindow + absl::Seconds(1));
  EXPECT_EQ(c.Hosts(other), "slice-0[a starting]");
  EXPECT_THAT(c.Orders(a), testing::ElementsAre(absl::StrCat("stop ", r.held.lease()),
                                                absl::StrCat("start ", c.PlacementOf(other).lease())));
  EXPECT_THAT(c.Orders(b), testing::ElementsAre(absl::StrCat("stop ", r.held.lease())));
}

TEST(ManagerStateRestart, ALeaseOfLongAgoIsANewOne) {
  Cluster c;
  Restarted r(c);
  c.Pass(limits::kManagerResumeWindow + absl::Seconds(1));
  const StreamId proxy = c.Lease(r.request);
  EXPECT_NE(c.PlacementOf(proxy).lease(), r.held.lease());
  EXPECT_THAT(c.PlacementOf(proxy).waiting_for(), HasSubstr("2 x cpu:1x2"));
}

TEST(ManagerStateRestart, HeldPlacementsThatDoNotFitAreNotTakenOver) {
  auto takes_over = [](std::function<void(LeaseRequest&)> change) {
    Cluster c;
    Restarted r(c);
    change(r.request);
    const StreamId proxy = c.Lease(r.request);
    c.Join(r.hellos[0]);
    c.Join(r.hellos[1]);
    return c.PlacementOf(proxy).lease() == r.held.lease();
  };
  EXPECT_TRUE(takes_over([](LeaseRequest&) {}));
  EXPECT_FALSE(takes_over([](LeaseRequest& r) { r.mutable_held()->clear_token(); }));
  EXPECT_FALSE(takes_over([](LeaseRequest& r) { r.mutable_held()->mutable_slices(0)->clear_hosts(); }));
  EXPECT_FALSE(takes_over([](LeaseRequest& r) { r.mutable_held()->mutable_slices(0)->set_slice("slice-1"); }));
  EXPECT_FALSE(takes_over([](LeaseRequest& r) {
    for (int i = 0; i < 5; ++i) {
      PlacedSlice slice = r.held().slices(0);
      slice.set_slice(absl::StrCat("more-", i));
      *r.mutable_held()->add_slices() = slice;
    }
  }));
  EXPECT_FALSE(takes_over(
      [](LeaseRequest& r) { r.mutable_held()->mutable_slices(0)->mutable_type()->set_devices_per_host(3); }));
}

// ---- With the record of the one before

TEST(ManagerStateRecord, TheInstanceStaysAndItsStartsAreCounted) {
  Cluster c;
  const uint64_t instance = c.state().Status().instance();
  EXPECT_NE(instance, 0u);
  EXPECT_EQ(c.state().Status().starts(), 1u);
  c.RestartWithRecord();
  EXPECT_EQ(c.state().Status().instance(), instance);
  EXPECT_EQ(c.state().Status().starts(), 2u);
}

TEST(ManagerStateRecord, WorkersThatForgotTheirSeatsGetThemBack) {
  Cluster c("cpu:2x2", 1);
  c.Join("a");
  c.Join("b");
  c.RestartWithRecord();
  EXPECT_EQ(c.SeatOf(c.Join("b")).host(), 1);  // a process that was started anew brings no last seat
  EXPECT_EQ(c.SeatOf(c.Join("a")).host(), 0);
}

TEST(ManagerStateRecord, ASliceWaitsForItsLeaseAlsoWhenItsWorkerHasNoEngine) {
  Cluster c("cpu:1x2", 1);
  c.Join("a");
  const Placement held = c.PlacementOf(c.Lease("cpu:1x2"));
  c.RestartWithRecord();
  const StreamId other = c.Lease("cpu:1x2");
  c.Join("a");
  EXPECT_EQ(c.Hosts(other), "");
  LeaseRequest request = Cluster::Wants("cpu:1x2");
  *request.mutable_held() = held;
  request.mutable_held()->set_token("0123456789abcdef");
  EXPECT_NE(c.PlacementOf(c.Lease(request)).lease(), held.lease());  // not its proxy
  *request.mutable_held() = held;
  const StreamId proxy = c.Lease(request);
  EXPECT_EQ(c.PlacementOf(proxy).lease(), held.lease());
  EXPECT_THAT(c.Hosts(proxy), HasSubstr("slice-0[a "));
}

TEST(ManagerStateRecord, WaitingLeasesKeepTheirOrder) {
  Cluster c("cpu:1x2", 1);
  const Placement first = c.PlacementOf(c.Lease("cpu:1x2"));
  const Placement second = c.PlacementOf(c.Lease("cpu:1x2"));
  c.RestartWithRecord();
  c.Join("a");
  LeaseRequest request = Cluster::Wants("cpu:1x2");
  *request.mutable_held() = second;
  const StreamId later = c.Lease(request);
  EXPECT_EQ(c.Hosts(later), "");
  *request.mutable_held() = first;
  const StreamId earlier = c.Lease(request);
  EXPECT_EQ(c.Hosts(earlier), "slice-0[a starting]");
  EXPECT_EQ(c.PlacementOf(earlier).lease(), first.lease());
  EXPECT_EQ(c.PlacementOf(later).lease(), second.lease());
  c.Lease("cpu:1x2");
  std::vector<uint64_t> epochs;
  const ManagerStatus status = c.state().Status();
  for (const LeaseStatus& lease : status.leases()) epochs.push_back(lease.epoch());
  EXPECT_THAT(epochs, testing::UnorderedElementsAre(1, 2, 3));
}

TEST(ManagerStateRecord, WhoeverDoesNotComeBackHoldsUpNobodyForLong) {
  Cluster c("cpu:1x2", 1);
  c.Lease("cpu:1x2");
  c.RestartWithRecord();
  c.Join("a");
  const StreamId next = c.Lease("cpu:1x2");
  EXPECT_EQ(c.Hosts(next), "");
  c.Pass(limits::kManagerResumeWindow + absl::Seconds(1));
  EXPECT_EQ(c.Hosts(next), "slice-0[a starting]");
  EXPECT_EQ(c.saved().leases_size(), 1);
}

TEST(ManagerStateRecord, AnEngineThatWasGivenUpStaysGivenUp) {
  Cluster c("cpu:1x2", 1);
  const StreamId a = c.Join("a");
  const StreamId proxy = c.Lease("cpu:1x2");
  const uint64_t lease = c.PlacementOf(proxy).lease();
  c.EngineUp(a, lease, 7);
  c.Close(a, "the network");
  LeaseRequest request = Cluster::Wants("cpu:1x2");
  *request.mutable_held() = c.PlacementOf(proxy);
  c.RestartWithRecord();
  WorkerHello hello = Cluster::Hello("a");
  *hello.add_engines() = Cluster::Engine(lease, 7);
  const StreamId again = c.Join(hello);
  EXPECT_THAT(c.Orders(again), testing::ElementsAre(absl::StrCat("restart ", lease, " #7")));
  const StreamId back = c.Lease(request);
  EXPECT_THAT(c.Hosts(back), Not(HasSubstr("up #7")));
  c.EngineUp(again, lease, 8);
  EXPECT_EQ(c.Hosts(back), "slice-0[a up #8]");
}

TEST(ManagerStateRecord, SlicesOfAnotherTypeAreLeftOut) {
  Cluster c("cpu:1x2", 2);
  c.Join("a");
  c.set_type("cpu:2x2");
  c.RestartWithRecord();
  EXPECT_EQ(c.state().Status().slices_size(), 0);
}

TEST(ManagerStateRestart, AProxysNewConnectionKeepsItsLease) {
  Cluster c("cpu:1x2", 1);
  const StreamId a = c.Join("a");
  const StreamId proxy = c.Lease("cpu:1x2");
  c.EngineUp(a, c.PlacementOf(proxy).lease(), 7);
  LeaseRequest request = Cluster::Wants("cpu:1x2");
  *request.mutable_held() = c.PlacementOf(proxy);
  const StreamId again = c.Lease(request);
  EXPECT_TRUE(c.Ended(proxy));
  EXPECT_EQ(c.Hosts(again), "slice-0[a up #7]");
  // Somebody who knows the id but not the token gets nothing of it.
  request.mutable_held()->set_token("0123456789abcdef");
  const StreamId thief = c.Lease(request);
  EXPECT_FALSE(c.Ended(again));
  EXPECT_EQ(c.Hosts(thief), "");
}

}  // namespace
}  // namespace parkway::manager
