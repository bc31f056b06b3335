// EngineHost on real threads: what runs on the reading thread, how events are merged, and that nothing races.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <condition_variable>
#include <random>
#include <thread>

#include "engine/host_events.h"
#include "engine/host_testing.h"

namespace parkway::engine {
namespace {

using namespace testing;  // NOLINT: host_testing.h

const Type kPair{ifrt::DType::kS32, {2}};
const std::string kEight = "abcdefgh";

template <typename F>
void WaitFor(F condition) {
  while (!condition()) std::this_thread::sleep_for(std::chrono::microseconds(200));
}

// ---- EventSender ---------------------------------------------------------------------------------------------------

TEST(EventSenderTest, WhatComesDuringASendGoesTogether) {
  SimExecutor clock;
  auto sender = std::make_shared<EventSender>(clock);
  std::vector<Events> sent;
  sender->Start([&](const fabric::Frame& frame) {
    sent.emplace_back().ParseFromString(*frame);
    // Others bring events while the first message is being written.
    if (sent.size() == 1) {
      for (uint64_t seq = 2; seq < 10; ++seq) sender->Emit([seq](Events& events) { events.add_done(seq); });
    }
  });
  sender->Emit([](Events& events) { events.add_done(1); });
  ASSERT_EQ(sent.size(), 2);
  EXPECT_EQ(sent[0].done_size(), 1);
  EXPECT_EQ(sent[1].done_size(), 8);
}

TEST(EventSenderTest, LazyEventsRideAlongOrGoABitLater) {
  SimExecutor clock;
  auto sender = std::make_shared<EventSender>(clock);
  std::vector<Events> sent;
  sender->EmitLazily([](Events& events) { events.add_done(1); });
  sender->Start([&](const fabric::Frame& frame) { sent.emplace_back().ParseFromString(*frame); });
  EXPECT_EQ(sent.size(), 1);  // came before the start
  sender->EmitLazily([](Events& events) { events.add_done(2); });
  sender->EmitLazily([](Events& events) { events.add_done(3); });
  EXPECT_EQ(sent.size(), 1);
  sender->Emit([](Events& events) { events.add_done(4); });
  ASSERT_EQ(sent.size(), 2);
  EXPECT_EQ(sent[1].done_size(), 3);
  clock.Advance(limits::kLazyEventDelay);
  EXPECT_EQ(sent.size(), 2);
  sender->EmitLazily([](Events& events) { events.add_done(5); });
  clock.Advance(limits::kLazyEventDelay);
  EXPECT_EQ(sent.size(), 3);
  sender->Stop();
  sender->Emit([](Events& events) { events.add_done(6); });
  EXPECT_EQ(sent.size(), 3);
}

// ---- Runner --------------------------------------------------------------------------------------------------------

TEST(RunnerTest, OneThreadKeepsOrderAndSeveralWorkAtOnce) {
  std::vector<int> order;
  {
    std::atomic<int> ran = 0;
    auto runner = MakeThreadRunner("one", 1);
    for (int i = 0; i < 100; ++i) runner->Post([&, i] { order.push_back(i), ++ran; });
    WaitFor([&] { return ran == 100; });
  }
  for (int i = 0; i < 100; ++i) EXPECT_EQ(order[i], i);
  std::atomic<int> inside = 0;
  auto pool = MakeThreadRunner("pool", 3);
  for (int i = 0; i < 3; ++i) {
    pool->Post([&] {
      ++inside;
      WaitFor([&] { return inside >= 3; });
    });
  }
  WaitFor([&] { return inside == 3; });
}

TEST(RunnerTest, MayBeDestroyedByItsOwnTask) {
  std::atomic<bool> done = false;
  std::shared_ptr<Runner> runner = MakeThreadRunner("one", 1);
  std::weak_ptr<Runner> weak = runner;
  runner->Post([runner, &done]() mutable {
    runner = nullptr;
    done = true;
  });
  runner = nullptr;
  WaitFor([&] { return done.load(); });
  WaitFor([&] { return weak.expired(); });
}

// ---- EngineHost ----------------------------------------------------------------------------------------------------

// An engine whose launches return when it is told to, and that knows on which thread they were made.
class SlowEngine : public Engine {
 public:
  explicit SlowEngine(std::unique_ptr<SimEngine> sim) : sim_(std::move(sim)) {}
  const Capabilities& capabilities() const override { return sim_->capabilities(); }
  absl::StatusOr<ArrayRef> MakeArray(const std::string& kind, std::vector<HostShard> shards) override {
    return sim_->MakeArray(kind, std::move(shards));
  }
  absl::StatusOr<ArrayRef> Assemble(absl::Span<const ShardOf> shards) override { return sim_->Assemble(shards); }
  absl::StatusOr<ArrayRef> Zeros(absl::Span<const int> devices, const Type& type) override {
    return sim_->Zeros(devices, type);
  }
  void View(const ArrayRef& array, int device, absl::AnyInvocable<void(absl::StatusOr<Bytes>)> done) override {
    sim_->View(array, device, std::move(done));
  }
  void WhenReady(const ArrayRef& array, absl::AnyInvocable<void(absl::Status)> done) override {
    sim_->WhenReady(array, std::move(done));
  }
  void OpenContext(ContextSpec spec, absl::AnyInvocable<void(absl::StatusOr<ContextRef>)> done) override {
    sim_->OpenContext(std::move(spec), std::move(done));
  }
  void CloseContext(const ContextRef& context, absl::Status cause, absl::AnyInvocable<void()> done) override {
    sim_->CloseContext(context, std::move(cause), std::move(done));
  }
  absl::StatusOr<ExecutableRef> Load(const LoadSpec& spec) override { return sim_->Load(spec); }
  absl::StatusOr<LaunchResult> Launch(Executable& executable, absl::Span<const ArrayRef> arguments,
                                      absl::Span<const int> donated,
                                      absl::AnyInvocable<void(absl::Status)> done) override {
    last_thread = std::this_thread::get_id();
    WaitFor([&] { return !blocked; });
    return sim_->Launch(executable, arguments, donated, std::move(done));
  }

  std::atomic<bool> blocked = false;
  std::atomic<std::thread::id> last_thread;

 private:
  const std::unique_ptr<SimEngine> sim_;
};

class HostThreadsTest : public ::testing::Test {
 protected:
  HostThreadsTest()
      : executor_(MakeSerialExecutor()),
        engine_(SimEngine::Create({.devices = 2, .launch_may_block = true}, *executor_)),
        bulk_(space_),
        host_({.incarnation = 100}, engine_, bulk_, threads_.threads()) {
    ProxyHello hello;
    hello.add_devices(0);
    hello.add_devices(1);
    EXPECT_TRUE(host_.Start(hello, [this](const fabric::Frame& frame) { record_.Add(*frame); }).ok());
  }
  uint64_t Send(Op op) {
    if (op.seq() == 0) op.set_seq(++seq_);
    EXPECT_TRUE(host_.OnMessage(op.SerializeAsString()).ok());
    return op.seq();
  }

  std::unique_ptr<Executor> executor_;
  ProcessThreads threads_;
  SlowEngine engine_;
  std::shared_ptr<BulkSpace> space_ = std::make_shared<BulkSpace>();
  FakeBulk bulk_;
  Record record_;
  std::atomic<uint64_t> seq_ = 0;
  EngineHost host_;
};

TEST_F(HostThreadsTest, ShortLaunchesMoveToTheReadingThreadAndLongOnesLeaveIt) {
  Send(MakeLoad(1, "f", {0}, {}, {kPair}));
  WaitFor([&] { return record_.was_loaded(1); });
  uint64_t array = 100;
  auto launch = [&] {
    const uint64_t seq = Send(MakeLaunch(1, {}, {++array}));
    WaitFor([&] { return record_.done(seq); });
  };
  launch();
  EXPECT_NE(engine_.last_thread.load(), std::this_thread::get_id());
  // Sooner or later a row of launches was short, however busy the machine is.
  WaitFor([&] { return launch(), engine_.last_thread.load() == std::this_thread::get_id(); });
  EXPECT_GT(host_.Stats().launches_inline, 0);
  // A long one: what it held up was the reader, so the next goes to the launch thread again.
  engine_.blocked = true;
  std::thread later([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    engine_.blocked = false;
  });
  WaitFor([&] { return launch(), !engine_.blocked; });
  later.join();
  launch();
  EXPECT_NE(engine_.last_thread.load(), std::this_thread::get_id());
}

TEST_F(HostThreadsTest, ABlockedLaunchHoldsUpNothingElse) {
  Send(MakePut(1, kPair, kEight, {0}));
  Send(MakeLoad(1, "f", {0}, {}, {kPair}));
  Send(MakeLoad(2, "g", {0}, {kPair}, {kPair}));
  WaitFor([&] { return record_.was_loaded(1) && record_.was_loaded(2); });
  engine_.blocked = true;
  const uint64_t first = Send(MakeLaunch(1, {}, {2}));
  const uint64_t second = Send(MakeLaunch(2, {2}, {3}));
  Send(MakeRead(1, 0, 50));
  Send(MakeRead(3, 0, 51));
  WaitFor([&] { return record_.was_read(50); });
  EXPECT_EQ(record_.ended(first), 0);
  engine_.blocked = false;
  WaitFor([&] { return record_.done(first) && record_.done(second) && record_.was_read(51); });
}

// Random operations from a reader and a control thread; every one is answered once, and nothing is left.
TEST_F(HostThreadsTest, ManyOperationsAtOnce) {
  std::mt19937 random(7);
  auto pick = [&](uint64_t n) { return std::uniform_int_distribution<uint64_t>(0, n - 1)(random); };
  Send(MakeLoad(1, "f", {0, 1}, {kPair}, {kPair}));
  Send(MakeLoad(2, "g", {1, 0}, {kPair, kPair}, {kPair, kPair}));
  Op open = MakeOpen(5, {0});
  Send(open);
  Send(MakeLoad(3, "h", {0, 1}, {kPair}, {kPair}, 5));
  std::atomic<bool> stop = false;
  std::atomic<uint64_t> newest = 0;
  std::thread control([&] {
    uint64_t read = 1'000'000;
    while (!stop) {
      Op op = MakeRead(newest, 0, ++read);
      op.set_seq(read);
      EXPECT_TRUE(host_.OnControl(op.SerializeAsString()).ok());
      Op abort;
      abort.mutable_abort()->set_launch_seq(seq_);
      EXPECT_TRUE(host_.OnControl(abort.SerializeAsString()).ok());
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
  });
  std::vector<uint64_t> live, seqs, reads;
  uint64_t next = 10;
  for (int step = 0; step < 3000; ++step) {
    const uint64_t kind = live.empty() ? 0 : pick(8);
    if (kind == 0) {
      Op op = MakePut(++next, kPair, kEight, {0, 1});
      if (pick(2) == 0) {
        op.mutable_put()->mutable_sources(0)->clear_inline_bytes();
        op.mutable_put()->mutable_sources(0)->mutable_transfer()->set_id(next);
        seqs.push_back(Send(op));
        threads_.threads().pool->Post([this, id = next] { bulk_.Fulfil(id, Bytes::OfString(kEight)); });
      } else {
        seqs.push_back(Send(op));
      }
      live.push_back(next);
    } else if (kind <= 2) {
      const uint64_t input = live[pick(live.size())];
      Op op = MakeLaunch(kind == 1 ? 1 : 3, {input}, {++next}, kind == 1 ? 0 : 5);
      *op.mutable_launch()->add_reads()->mutable_shard() = MakeRef(0, 1);
      op.mutable_launch()->mutable_reads(0)->set_read(2000 + next);
      reads.push_back(2000 + next);
      seqs.push_back(Send(op));
      live.push_back(next);
    } else if (kind == 3) {
      const size_t at = pick(live.size());
      const uint64_t donated = live[at];
      live.erase(live.begin() + static_cast<ptrdiff_t>(at));
      seqs.push_back(Send(MakeLaunch(2, {donated, donated}, {next + 1, next + 2}, 0, {0})));
      next += 2;
      live.push_back(next);
      live.push_back(next - 1);
    } else if (kind == 4) {
      Op op;
      op.mutable_gather()->set_array(++next);
      op.mutable_gather()->set_may_alias(pick(2) == 0);
      GatherShard& shard = *op.mutable_gather()->add_shards();
      shard.set_device(1);
      SetType(*shard.mutable_type(), kPair);
      SetType(*shard.add_pieces()->mutable_source_type(), kPair);
      *shard.mutable_pieces(0)->mutable_local() = MakeRef(live[pick(live.size())], 1);
      seqs.push_back(Send(op));
      Op remove = MakeDelete({next});
      seqs.push_back(Send(remove));
    } else if (kind == 5) {
      Op op;
      *op.mutable_export_()->mutable_shard() = MakeRef(live[pick(live.size())], 0);
      op.mutable_export_()->set_transfer(5'000'000 + next);
      seqs.push_back(Send(op));
      Op release;
      release.mutable_release()->add_transfers(5'000'000 + next++);
      Send(release);
    } else if (kind == 6) {
      const size_t at = pick(live.size());
      seqs.push_back(Send(MakeDelete({live[at]})));
      live.erase(live.begin() + static_cast<ptrdiff_t>(at));
    } else {
      reads.push_back(100'000 + static_cast<uint64_t>(step));
      Send(MakeRead(live[pick(live.size())], 1, reads.back()));
    }
    newest = next;
  }
  for (uint64_t array : live) seqs.push_back(Send(MakeDelete({array})));
  WaitFor([&] {
    return std::all_of(seqs.begin(), seqs.end(), [&](uint64_t seq) { return record_.ended(seq) > 0; }) &&
           std::all_of(reads.begin(), reads.end(), [&](uint64_t read) { return record_.was_read(read); });
  });
  stop = true;
  control.join();
  for (uint64_t seq : seqs) EXPECT_EQ(record_.ended(seq), 1);
  EXPECT_EQ(host_.Stats().arrays, 0);
  WaitFor([&] { return host_.Stats().operations == 0; });
  EXPECT_FALSE(record_.broken());
}

}  // namespace
}  // namespace parkway::engine
