#include "worker/worker.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/limits.h"

namespace parkway::worker {
namespace {

using ::testing::HasSubstr;

// Engines that do nothing by themselves.
class FakeEngine : public EngineProcess {
 public:
  FakeEngine(StartEngine start, Events events) : start(std::move(start)), events(std::move(events)) {}
  int pid() const override { return 1; }
  void Stop(const absl::Status& why) override { stopped = why; }
  void Kill(const absl::Status& why) override { killed = why; }
  void Ready(uint64_t incarnation) {
    EngineEndpoint endpoint;
    endpoint.set_incarnation(incarnation);
    endpoint.set_address("h:1");
    events.on_ready(endpoint);
  }
  void Exit(const std::string& why) {
    const auto on_exit = events.on_exit;
    on_exit(absl::UnavailableError(why));
  }
  StartEngine start;
  Events events;
  absl::Status stopped, killed;
};

class WorkerTest : public testing::Test {
 protected:
  WorkerTest() {
    WorkerHello hello;
    hello.set_name("a");
    worker_.emplace(&executor_, hello,
                    Worker::Hooks{.start_engine = [this](const StartEngine& start, EngineProcess::Events events)
                                      -> absl::StatusOr<std::unique_ptr<EngineProcess>> {
                                    ++starts_;
                                    if (!can_start_) return absl::UnavailableError("no such program");
                                    auto engine = std::make_unique<FakeEngine>(start, std::move(events));
                                    engine_ = engine.get();
                                    return engine;
                                  },
                                  .send = [this](const WorkerMessage& m) { sent_.push_back(m); },
                                  .lease_over = [this] { ++leases_over_; }});
  }
  void Start(uint64_t lease) {
    ManagerToWorker message;
    message.mutable_start()->set_lease(lease);
    message.mutable_start()->set_devices(2);
    worker_->OnMessage(message);
  }
  void Stop(uint64_t lease) {
    ManagerToWorker message;
    message.mutable_stop()->set_lease(lease);
    message.mutable_stop()->set_reason("its lease has ended");
    worker_->OnMessage(message);
  }

  SimExecutor executor_;
  FakeEngine* engine_ = nullptr;
  bool can_start_ = true;
  int starts_ = 0, leases_over_ = 0;
  std::vector<WorkerMessage> sent_;
  std::optional<Worker> worker_;
};

TEST_F(WorkerTest, AnEngineIsStartedAndToldOfWhenReady) {
  Start(5);
  EXPECT_EQ(starts_, 1);
  EXPECT_TRUE(sent_.empty());
  EXPECT_FALSE(worker_->Hello().engines(0).up());
  EXPECT_FALSE(worker_->Hello().engines(0).has_cause());
  engine_->Ready(7);
  ASSERT_EQ(sent_.size(), 1u);
  EXPECT_TRUE(sent_[0].engine().up());
  EXPECT_EQ(sent_[0].engine().lease(), 5u);
  EXPECT_EQ(worker_->Hello().engines(0).endpoint().incarnation(), 7u);
  Start(5);  // asked for again: it runs
  EXPECT_EQ(starts_, 1);
}

TEST_F(WorkerTest, AnEngineThatDiesIsToldOfAndStartedAgain) {
  Start(5);
  engine_->Ready(7);
  executor_.Advance(absl::Seconds(60));
  engine_->Exit("killed by signal 9");
  ASSERT_EQ(sent_.size(), 2u);
  EXPECT_FALSE(sent_[1].engine().up());
  EXPECT_EQ(sent_[1].engine().cause().message(), "the engine of worker a: killed by signal 9");
  executor_.Advance(absl::ZeroDuration());
  EXPECT_EQ(starts_, 2);
  EXPECT_THAT(worker_->Hello().engines(0).cause().message(), HasSubstr("signal 9"));
  engine_->Ready(8);
  EXPECT_TRUE(sent_.back().engine().up());
  EXPECT_FALSE(sent_.back().engine().has_cause());
}

TEST_F(WorkerTest, AnEngineThatKeepsDyingIsStartedLessAndLessOften) {
  can_start_ = false;
  Start(5);
  executor_.Advance(absl::Seconds(60));
  EXPECT_GE(starts_, 60 / 5);
  EXPECT_LE(starts_, 60 / 5 + 6);
  EXPECT_THAT(sent_.back().engine().cause().message(), HasSubstr("no such program"));
  can_start_ = true;
  executor_.Advance(limits::kEngineRestartDelay);
  engine_->Ready(7);
  EXPECT_TRUE(sent_.back().engine().up());
}

TEST_F(WorkerTest, StopEndsTheEngineOfItsLeaseOnly) {
  Start(5);
  Stop(4);
  EXPECT_TRUE(engine_->stopped.ok());
  Stop(5);
  EXPECT_THAT(std::string(engine_->stopped.message()), HasSubstr("its lease has ended"));
  engine_->Exit("terminated");
  executor_.Advance(absl::Seconds(60));
  EXPECT_EQ(starts_, 1);
  EXPECT_TRUE(sent_.empty());
  EXPECT_EQ(worker_->Hello().engines_size(), 0);
}

TEST_F(WorkerTest, AnotherLeasesEngineWaitsUntilTheOldOneIsGone) {
  Start(5);
  engine_->Ready(7);
  Stop(5);
  Start(6);
  EXPECT_EQ(starts_, 1);
  engine_->Exit("terminated");
  executor_.Advance(absl::ZeroDuration());
  EXPECT_EQ(starts_, 2);
  EXPECT_EQ(engine_->start.lease(), 6u);
  EXPECT_EQ(worker_->Hello().engines(0).lease(), 6u);
  EXPECT_FALSE(worker_->Hello().engines(0).has_cause());
}

TEST_F(WorkerTest, RestartKillsTheNamedIncarnationOnly) {
  Start(5);
  engine_->Ready(7);
  ManagerToWorker message;
  message.mutable_restart()->set_lease(5);
  message.mutable_restart()->set_incarnation(6);
  message.mutable_restart()->set_reason("a program does not end");
  worker_->OnMessage(message);
  EXPECT_TRUE(engine_->killed.ok());
  message.mutable_restart()->set_incarnation(7);
  worker_->OnMessage(message);
  EXPECT_EQ(engine_->killed.message(), "restarted: a program does not end");
}

TEST_F(WorkerTest, LeavingSaysGoodbyeAndWaitsForTheEngine) {
  Start(5);
  bool left = false;
  worker_->Leave("SIGTERM", [&] { left = true; });
  EXPECT_EQ(sent_.back().goodbye().reason(), "SIGTERM");
  EXPECT_FALSE(left);
  EXPECT_FALSE(engine_->stopped.ok());
  engine_->Exit("terminated");
  EXPECT_TRUE(left);
  Start(6);
  EXPECT_EQ(starts_, 1);
}

TEST_F(WorkerTest, TheSeatIsRemembered) {
  ManagerToWorker message;
  message.mutable_seat()->set_slice("slice-1");
  message.mutable_seat()->set_host(3);
  worker_->OnMessage(message);
  EXPECT_EQ(worker_->Hello().last_seat().slice(), "slice-1");
  EXPECT_EQ(worker_->Hello().last_seat().host(), 3);
}

}  // namespace
}  // namespace parkway::worker
