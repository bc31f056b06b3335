#include "worker/arena.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cstring>

#include "absl/time/clock.h"
#include "engine/arena.h"
#include "engine/host_testing.h"

namespace parkway::worker {
namespace {

using engine::ArenaShard;
using engine::Type;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::SizeIs;

constexpr int64_t kQuota = 1 << 20;
const Type kBytes64{ifrt::DType::kU8, {64}};

std::unique_ptr<engine::Arena> EngineEnd(Arena& arena, uint64_t lease = 1) {
  absl::StatusOr<Descriptor> end = arena.Serve(lease);
  EXPECT_TRUE(end.ok()) << end.status();
  return engine::ConnectArena(*std::move(end));
}

ArenaShard ShardOf(uint64_t session, uint64_t array, int device = 0) {
  return {.session = session, .array = array, .device = device, .memory_kind = "pinned_host", .type = kBytes64};
}

absl::StatusOr<Bytes> StoreText(engine::Arena& arena, const ArenaShard& shard, const std::string& text) {
  return arena.Store(shard, text.size(), [&](uint8_t* to) { std::memcpy(to, text.data(), text.size()); });
}

// Releases are not answered, so it may take a moment.
bool Becomes(const Arena& arena, size_t blocks) {
  for (int i = 0; i < 1000 && arena.stats().blocks != blocks; ++i) absl::SleepFor(absl::Milliseconds(10));
  return arena.stats().blocks == blocks;
}

TEST(Arena, ABlockOutlivesTheEngineThatWroteIt) {
  Arena arena(kQuota);
  auto first = EngineEnd(arena);
  const std::string text(64, 'a');
  absl::StatusOr<Bytes> stored = StoreText(*first, ShardOf(3, 7, 2), text);
  ASSERT_TRUE(stored.ok()) << stored.status();
  EXPECT_EQ(stored->view(), text);
  // As if the process were gone: it says nothing more.
  auto second = EngineEnd(arena);
  auto taken = second->TakeOver();
  ASSERT_TRUE(taken.ok()) << taken.status();
  ASSERT_THAT(*taken, SizeIs(1));
  const auto& [shard, bytes] = taken->front();
  EXPECT_EQ(shard.session, 3u);
  EXPECT_EQ(shard.array, 7u);
  EXPECT_EQ(shard.device, 2);
  EXPECT_EQ(shard.memory_kind, "pinned_host");
  EXPECT_EQ(shard.type, kBytes64);
  EXPECT_EQ(bytes.view(), text);
}

TEST(Arena, ManyBlocksAreTakenOver) {
  Arena arena(kQuota);
  auto first = EngineEnd(arena);
  std::vector<Bytes> held;
  for (uint64_t i = 1; i <= 200; ++i) held.push_back(StoreText(*first, ShardOf(1, i), std::string(64, 'x')).value());
  auto taken = EngineEnd(arena)->TakeOver();
  ASSERT_TRUE(taken.ok()) << taken.status();
  EXPECT_THAT(*taken, SizeIs(200));
}

TEST(Arena, NobodyCanWriteToASealedBlock) {
  Arena arena(kQuota);
  auto engine = EngineEnd(arena);
  absl::StatusOr<Bytes> stored = StoreText(*engine, ShardOf(1, 1), std::string(64, 'a'));
  ASSERT_TRUE(stored.ok());
  const std::string path = stored->local_path.substr(0, stored->local_path.rfind('#'));
  const Descriptor again(open(path.c_str(), O_RDWR | O_CLOEXEC));
  ASSERT_GE(again.get(), 0);
  EXPECT_EQ(mmap(nullptr, 64, PROT_READ | PROT_WRITE, MAP_SHARED, again.get(), 0), MAP_FAILED);
  EXPECT_LT(pwrite(again.get(), "b", 1, 0), 0);
  EXPECT_EQ(stored->view(), std::string(64, 'a'));
}

TEST(Arena, TheLastReleaseFrees) {
  Arena arena(kQuota);
  auto engine = EngineEnd(arena);
  Bytes one = StoreText(*engine, ShardOf(1, 1), std::string(64, 'a')).value();
  Bytes same = one;
  EXPECT_EQ(arena.stats().bytes, 64);
  one = {};
  ASSERT_TRUE(StoreText(*engine, ShardOf(1, 2), "b").ok());  // dropped; it goes after what was dropped before it
  EXPECT_TRUE(Becomes(arena, 1));
  same = {};
  EXPECT_TRUE(Becomes(arena, 0));
  EXPECT_EQ(arena.stats().bytes, 0);
}

TEST(Arena, ABlockWhoseWriterDiedUnsealedIsLost) {
  Arena arena(kQuota);
  auto engine = EngineEnd(arena);
  engine::Arena* writer = engine.get();
  const absl::StatusOr<Bytes> stored = writer->Store(ShardOf(1, 1), 64, [&](uint8_t* to) {
    std::memset(to, 'a', 64);
    EXPECT_EQ(arena.stats().blocks, 1u);
    EXPECT_THAT(EngineEnd(arena)->TakeOver().value(), SizeIs(0));  // its worker thinks that it is dead
  });
  EXPECT_FALSE(stored.ok());
  EXPECT_EQ(arena.stats().blocks, 0u);
}

TEST(Arena, ASessionHasAQuotaAndOthersDoNotFeelIt) {
  Arena arena(kQuota);
  auto engine = EngineEnd(arena);
  absl::StatusOr<Bytes> most = StoreText(*engine, ShardOf(5, 1), std::string(kQuota - 10, 'a'));
  ASSERT_TRUE(most.ok()) << most.status();
  const absl::StatusOr<Bytes> more = StoreText(*engine, ShardOf(5, 2), std::string(11, 'b'));
  EXPECT_EQ(more.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(more.status().message(), AllOf(HasSubstr("session 5 has 1048566 bytes"), HasSubstr("11 more"),
                                             HasSubstr("1048576 bytes"), HasSubstr("--arena_bytes")));
  EXPECT_TRUE(StoreText(*engine, ShardOf(6, 3), std::string(11, 'b')).ok());
  most = Bytes();
  EXPECT_TRUE(Becomes(arena, 0));
  EXPECT_TRUE(StoreText(*engine, ShardOf(5, 4), std::string(11, 'b')).ok());
}

TEST(Arena, EmptyShardsAreKeptToo) {
  Arena arena(kQuota);
  auto first = EngineEnd(arena);
  const absl::StatusOr<Bytes> stored = StoreText(*first, ShardOf(1, 9), "");
  ASSERT_TRUE(stored.ok()) << stored.status();
  auto taken = EngineEnd(arena)->TakeOver();
  ASSERT_THAT(*taken, SizeIs(1));
  EXPECT_EQ(taken->front().second.size, 0u);
}

TEST(Arena, AnotherLeaseFindsNothing) {
  Arena arena(kQuota);
  auto first = EngineEnd(arena, 1);
  const Bytes held = StoreText(*first, ShardOf(1, 1), std::string(64, 'a')).value();
  EXPECT_THAT(EngineEnd(arena, 2)->TakeOver().value(), SizeIs(0));
  EXPECT_EQ(arena.stats().bytes, 0);
  EXPECT_EQ(held.view(), std::string(64, 'a'));  // who has it mapped keeps it
}

TEST(Arena, AnEngineWithoutItsWorkerGetsErrors) {
  auto arena = std::make_unique<Arena>(kQuota);
  auto engine = EngineEnd(*arena);
  arena.reset();
  EXPECT_EQ(StoreText(*engine, ShardOf(1, 1), "a").status().code(), absl::StatusCode::kUnavailable);
}

TEST(Arena, NonsenseEndsTheConnectionAlone) {
  Arena arena(kQuota);
  absl::StatusOr<Descriptor> end = arena.Serve(1);
  ASSERT_TRUE(end.ok());
  ASSERT_TRUE(SendDatagram(end->get(), "\xff\xff\xff garbage").ok());
  EXPECT_FALSE(ReceiveDatagram(end->get()).ok());
  EXPECT_TRUE(StoreText(*EngineEnd(arena), ShardOf(1, 1), "a").ok());
}

// ---- Behind an EngineHost

using engine::testing::MakeDelete;
using engine::testing::MakeLaunch;
using engine::testing::MakeLoad;
using engine::testing::MakePut;
using engine::testing::MakeRead;

Op HostPut(uint64_t array, const std::string& bytes, const std::vector<int>& devices) {
  Op op = MakePut(array, kBytes64, bytes, devices);
  op.set_session(1);
  op.mutable_put()->set_memory_kind("pinned_host");
  return op;
}

TEST(ArenaHost, ArraysInHostMemoryAreThereForTheNextEngine) {
  Arena arena(kQuota);
  auto first = EngineEnd(arena);
  engine::testing::Cluster dying(1, {.devices = 2}, first.get());
  const std::string text(64, 'a');
  const uint64_t put = dying.Send(0, HostPut(7, text, {0, 1}));
  dying.Send(0, MakePut(8, kBytes64, text, {0}));  // on the device
  dying.Settle();
  ASSERT_TRUE(dying[0].record.done(put));
  EXPECT_EQ(arena.stats().blocks, 2u);

  auto second = EngineEnd(arena);
  engine::testing::Cluster next(1, {.devices = 2}, second.get());
  next.Settle();
  const EngineHello hello = next[0].record.messages().front().hello();
  EXPECT_THAT(hello.arena_kinds(), ::testing::ElementsAre("pinned_host", "unpinned_host"));
  ASSERT_THAT(hello.kept(), SizeIs(2));
  EXPECT_EQ(hello.kept(0).array(), 7u);
  next.Send(0, MakeRead(7, 1, 100));
  next.Send(0, MakeRead(8, 0, 101));
  next.Settle();
  EXPECT_EQ(next[0].record.read(100).inline_bytes(), text);
  EXPECT_NE(next[0].record.read(101).status().code(), 0);
  next.Send(0, MakeDelete({7}));
  next.Settle();
  EXPECT_TRUE(Becomes(arena, 0));
}

TEST(ArenaHost, OutputsOfProgramsMoveThereBeforeTheirLaunchIsDone) {
  Arena arena(kQuota);
  auto engine = EngineEnd(arena);
  engine::testing::Cluster cluster(1, {.devices = 2}, engine.get());
  cluster.Send(0, MakePut(1, kBytes64, std::string(64, 'a'), {0, 1}));
  Op load = MakeLoad(5, "step", {0, 1}, {kBytes64}, {kBytes64, kBytes64});
  load.mutable_load()->add_output_memory_kinds("pinned_host");
  load.mutable_load()->add_output_memory_kinds("");
  cluster.Send(0, load);
  const uint64_t launch = cluster.Send(0, MakeLaunch(5, {1}, {2, 3}));
  cluster.Settle();
  EXPECT_TRUE(cluster[0].record.done(launch));
  EXPECT_EQ(arena.stats().blocks, 2u);
  cluster.Send(0, MakeRead(2, 0, 100));
  cluster.Settle();
  auto next = EngineEnd(arena);
  const auto taken = next->TakeOver().value();
  ASSERT_THAT(taken, SizeIs(2));
  EXPECT_EQ(taken[0].first.array, 2u);
  EXPECT_EQ(taken[taken[0].first.device].second.view(), cluster[0].record.read(100).inline_bytes());
}

TEST(ArenaHost, ADonatedOutputIsMovedFirst) {
  Arena arena(kQuota);
  auto engine = EngineEnd(arena);
  engine::testing::Cluster cluster(1, {.devices = 1}, engine.get());
  cluster.Send(0, MakePut(1, kBytes64, std::string(64, 'a'), {0}));
  Op load = MakeLoad(5, "step", {0}, {kBytes64}, {kBytes64});
  load.mutable_load()->add_output_memory_kinds("pinned_host");
  cluster.Send(0, load);
  const uint64_t first = cluster.Send(0, MakeLaunch(5, {1}, {2}));
  const uint64_t second = cluster.Send(0, MakeLaunch(5, {2}, {3}, 0, {0}));
  cluster.Settle();
  EXPECT_TRUE(cluster[0].record.done(first));
  EXPECT_TRUE(cluster[0].record.done(second));
  EXPECT_TRUE(Becomes(arena, 1));
}

TEST(ArenaHost, WhatIsKeptOfDeviceMemoryIsThereForTheNextEngineBeyondAnyQuota) {
  Arena arena(10);
  auto first = EngineEnd(arena);
  engine::testing::Cluster dying(1, {.devices = 2}, first.get());
  const std::string text(64, 'a');
  dying.Send(0, MakePut(7, kBytes64, text, {0, 1}));
  for (int device : {0, 1}) {
    Op keep = MakeRead(7, device, 100 + device);
    keep.set_session(1);
    keep.mutable_read()->set_keep(true);
    dying.Send(0, keep);
  }
  dying.Settle();
  EXPECT_EQ(dying[0].record.read(100).status().code(), 0);
  EXPECT_TRUE(dying[0].record.read(100).inline_bytes().empty());
  EXPECT_EQ(arena.stats().blocks, 2u);

  auto second = EngineEnd(arena);
  engine::testing::Cluster next(1, {.devices = 2}, second.get());
  next.Settle();
  EXPECT_THAT(next[0].record.messages().front().hello().kept(), SizeIs(2));
  EXPECT_TRUE(Becomes(arena, 0));  // it is device memory again
  next.Send(0, MakeRead(7, 1, 100));
  next.Settle();
  EXPECT_EQ(next[0].record.read(100).inline_bytes(), text);
}

TEST(ArenaHost, AnEngineWithoutAnArenaKeepsNothingAndSaysSo) {
  engine::testing::Cluster cluster(1, {.devices = 1});
  cluster.Send(0, MakePut(7, kBytes64, std::string(64, 'a'), {0}));
  Op keep = MakeRead(7, 0, 100);
  keep.mutable_read()->set_keep(true);
  cluster.Send(0, keep);
  cluster.Settle();
  EXPECT_EQ(cluster[0].record.read(100).status().code(), static_cast<int>(absl::StatusCode::kFailedPrecondition));
}

TEST(ArenaHost, WithoutRoomPutsAndLaunchesFailInWords) {
  Arena arena(100);
  auto engine = EngineEnd(arena);
  engine::testing::Cluster cluster(1, {.devices = 1}, engine.get());
  const uint64_t fits = cluster.Send(0, HostPut(1, std::string(64, 'a'), {0}));
  const uint64_t put = cluster.Send(0, HostPut(2, std::string(64, 'b'), {0}));
  Op load = MakeLoad(5, "step", {0}, {kBytes64}, {kBytes64});
  load.mutable_load()->add_output_memory_kinds("unpinned_host");
  cluster.Send(0, load);
  Op op = MakeLaunch(5, {1}, {3});
  op.set_session(1);
  const uint64_t launch = cluster.Send(0, op);
  cluster.Settle();
  EXPECT_TRUE(cluster[0].record.done(fits));
  EXPECT_EQ(cluster[0].record.failure(put).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(cluster[0].record.failure(launch).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(cluster[0].record.failure(launch).message(), AllOf(HasSubstr("step"), HasSubstr("session 1")));
}

}  // namespace
}  // namespace parkway::worker
