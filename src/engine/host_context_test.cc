// Hosts together: copies between them, contexts, collectives, and what happens when a member is lost.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/host_testing.h"

namespace parkway::engine {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using namespace testing;  // NOLINT: host_testing.h

const Type kPair{ifrt::DType::kS32, {2}};
const Type kGrid{ifrt::DType::kU8, {4, 4}};
const std::string kEight = "abcdefgh";
const std::string kSixteen = "0123456789abcdef";

std::string AsBytes(uint64_t value) { return {reinterpret_cast<const char*>(&value), sizeof(value)}; }
uint64_t Print(const std::string& bytes) { return SimFingerprint(Bytes::OfString(bytes)); }

class ContextTest : public ::testing::Test {
 protected:
  const Record& record(int host) { return cluster_[host].record; }
  uint64_t SendTo(int host, Op op) { return cluster_.Send(host, std::move(op)); }
  // The same operation to both hosts, as one message.
  uint64_t SendBoth(Op op) {
    op.set_seq(++cluster_.seq);
    SendTo(0, op);
    return SendTo(1, op);
  }
  std::string ReadNow(int host, uint64_t array, int device) {
    const uint64_t read = 1000 + ++reads_;
    SendTo(host, MakeRead(array, device, read));
    cluster_.Settle();
    EXPECT_TRUE(record(host).was_read(read)) << "array " << array;
    if (!record(host).was_read(read)) return "";
    const absl::Status status = FromProto(record(host).read(read).status());
    return status.ok() ? record(host).read(read).inline_bytes() : status.ToString();
  }
  // Opens context `id` on both and loads f (one argument, one output) as executable `id` there, on all four devices.
  void OpenWithProgram(uint64_t id) {
    SendBoth(MakeOpen(id, {0, 1}));
    SendBoth(MakeLoad(id, "f", {0, 1, 10, 11}, {kPair}, {kPair}, id));
    cluster_.Settle();
  }

  Cluster cluster_{2};
  uint64_t reads_ = 0;
};

// ---- Copies --------------------------------------------------------------------------------------------------------

parkway::Piece& AddPiece(GatherShard& shard, const Type& source, const std::vector<int64_t>& from,
                         const std::vector<int64_t>& to, const std::vector<int64_t>& size) {
  parkway::Piece& piece = *shard.add_pieces();
  SetType(*piece.mutable_source_type(), source);
  SetRegion(*piece.mutable_from(), from, size);
  SetRegion(*piece.mutable_to(), to, size);
  return piece;
}
GatherShard& AddShard(Op& op, uint64_t array, int device, const Type& type) {
  op.mutable_gather()->set_array(array);
  GatherShard& shard = *op.mutable_gather()->add_shards();
  shard.set_device(device);
  SetType(*shard.mutable_type(), type);
  return shard;
}
Op MakeExport(uint64_t array, int device, uint64_t transfer) {
  Op op;
  *op.mutable_export_()->mutable_shard() = MakeRef(array, device);
  op.mutable_export_()->set_transfer(transfer);
  return op;
}

TEST_F(ContextTest, GathersPiecesOfLocalAndRemoteShards) {
  SendTo(0, MakePut(1, kGrid, kSixteen, {0}));
  SendTo(1, MakePut(2, kGrid, "ABCDEFGHIJKLMNOP", {10}));
  // The pull comes before the export: it waits.
  Op gather;
  GatherShard& shard = AddShard(gather, 3, 11, {ifrt::DType::kU8, {4, 2}});
  AddPiece(shard, {ifrt::DType::kU8, {2, 2}}, {0, 0}, {0, 0}, {2, 2}).mutable_transfer()->set_id(71);
  *AddPiece(shard, kGrid, {2, 1}, {2, 0}, {2, 2}).mutable_local() = MakeRef(2, 10);
  const uint64_t gathered = SendTo(1, gather);
  cluster_.Settle();
  EXPECT_EQ(record(1).ended(gathered), 0);
  Op exported = MakeExport(1, 0, 71);
  SetRegion(*exported.mutable_export_()->mutable_region(), {1, 2}, {2, 2});
  const uint64_t seq = SendTo(0, exported);
  EXPECT_EQ(ReadNow(1, 3, 11), "67abJKNO");
  EXPECT_TRUE(record(1).done(gathered));
  EXPECT_TRUE(record(0).done(seq));
  Op release;
  release.mutable_release()->add_transfers(71);
  SendTo(0, release);
  EXPECT_EQ(cluster_.space->held(), 0);
}

TEST_F(ContextTest, CopiesAndSharesWholeShards) {
  SendTo(0, MakePut(1, kPair, kEight, {0, 1}));
  Op gather;
  AddShard(gather, 2, 0, kPair);  // may share
  *AddPiece(*gather.mutable_gather()->mutable_shards(0), kPair, {0}, {0}, {2}).mutable_local() = MakeRef(1, 0);
  AddShard(gather, 2, 1, kPair);  // another device: a copy
  *AddPiece(*gather.mutable_gather()->mutable_shards(1), kPair, {0}, {0}, {2}).mutable_local() = MakeRef(1, 0);
  gather.mutable_gather()->set_may_alias(true);
  const uint64_t seq = SendTo(0, gather);
  SendTo(0, MakeDelete({1}));
  EXPECT_EQ(ReadNow(0, 2, 0), kEight);
  EXPECT_EQ(ReadNow(0, 2, 1), kEight);
  EXPECT_TRUE(record(0).done(seq));
  // To another kind of memory nothing is shared.
  Op host_copy;
  AddShard(host_copy, 3, 0, kPair);
  *AddPiece(*host_copy.mutable_gather()->mutable_shards(0), kPair, {0}, {0}, {2}).mutable_local() = MakeRef(2, 0);
  host_copy.mutable_gather()->set_may_alias(true);
  host_copy.mutable_gather()->set_memory_kind("pinned_host");
  SendTo(0, host_copy);
  EXPECT_EQ(ReadNow(0, 3, 0), kEight);
  SendTo(0, MakeDelete({2, 3}));
  cluster_.Settle();
  EXPECT_EQ(cluster_[0].engine->counts().live_arrays, 0);
}

TEST_F(ContextTest, SharesWhatIsStillBeingComputed) {
  cluster_[0].engine->SetLaunchTime("slow", absl::Seconds(1));
  SendTo(0, MakeLoad(1, "slow", {0}, {}, {kPair}));
  SendTo(0, MakeLaunch(1, {}, {1}));
  Op gather;
  AddShard(gather, 2, 0, kPair);
  *AddPiece(*gather.mutable_gather()->mutable_shards(0), kPair, {0}, {0}, {2}).mutable_local() = MakeRef(1, 0);
  gather.mutable_gather()->set_may_alias(true);
  const uint64_t seq = SendTo(0, gather);
  cluster_.Settle();
  EXPECT_EQ(record(0).ended(seq), 0);
  cluster_.executor.Advance(absl::Seconds(1));
  EXPECT_TRUE(record(0).done(seq));
  EXPECT_EQ(ReadNow(0, 2, 0), AsBytes(SimOutput("slow", 0, 0, {})));
}

TEST_F(ContextTest, ErrorsOfCopiesStandByShard) {
  SendTo(0, MakePut(1, kPair, kEight, {0}));
  Op gather;
  AddShard(gather, 2, 0, kPair);
  *AddPiece(*gather.mutable_gather()->mutable_shards(0), kPair, {0}, {0}, {2}).mutable_local() = MakeRef(1, 0);
  AddShard(gather, 2, 1, kPair);
  AddPiece(*gather.mutable_gather()->mutable_shards(1), kPair, {0}, {0}, {2}).mutable_transfer()->set_id(71);
  const uint64_t seq = SendTo(0, gather);
  FakeBulk(cluster_.space).Fail(71, absl::UnavailableError("the other host left"));
  EXPECT_EQ(ReadNow(0, 2, 0), kEight);
  EXPECT_THAT(ReadNow(0, 2, 1), HasSubstr("the other host left"));
  EXPECT_EQ(record(0).ended(seq), 1);
  const Failure failure = record(0).failure_event(seq);
  ASSERT_EQ(failure.shards_size(), 1);
  EXPECT_EQ(failure.shards(0).device(), 1);
  // A program on the sound device can use it, one on both can't.
  SendTo(0, MakeLoad(1, "f", {0}, {kPair}, {kPair}));
  SendTo(0, MakeLoad(2, "g", {0, 1}, {kPair}, {kPair}));
  Op one = MakeLaunch(1, {0}, {3});
  *one.mutable_launch()->mutable_arguments(0)->add_shards() = MakeRef(2, 0);
  const uint64_t sound = SendTo(0, one);
  const uint64_t whole = SendTo(0, MakeLaunch(2, {2}, {4}));
  cluster_.Settle();
  EXPECT_TRUE(record(0).done(sound));
  EXPECT_EQ(record(0).failure(whole), absl::UnavailableError("the other host left"));
}

TEST_F(ContextTest, NonsenseCopiesFail) {
  SendTo(0, MakePut(1, kGrid, kSixteen, {0}));
  const Type half{ifrt::DType::kU8, {4, 2}};
  auto local = [](Op& op, const Type& source, std::vector<int64_t> from, std::vector<int64_t> to,
                  std::vector<int64_t> size, uint64_t array = 1) {
    *AddPiece(*op.mutable_gather()->mutable_shards(0), source, from, to, size).mutable_local() = MakeRef(array, 0);
  };
  std::vector<std::pair<Op, std::string>> cases(8);
  for (auto& [op, words] : cases) AddShard(op, 100 + static_cast<uint64_t>(&op - &cases[0].first), 0, half);
  cases[0].second = "cover 4 elements";
  local(cases[0].first, kGrid, {0, 0}, {0, 0}, {2, 2});
  cases[1].second = "overlap";
  local(cases[1].first, kGrid, {0, 0}, {0, 0}, {2, 2});
  local(cases[1].first, kGrid, {0, 0}, {1, 0}, {2, 2});
  cases[2].second = "leaves";
  local(cases[2].first, kGrid, {2, 0}, {0, 0}, {4, 2});
  cases[3].second = "leaves";
  local(cases[3].first, kGrid, {0, 0}, {0, 1}, {4, 2});
  cases[4].second = "can't become";
  local(cases[4].first, {ifrt::DType::kS8, {4, 4}}, {0, 0}, {0, 0}, {4, 2});
  cases[5].second = "array 99";
  local(cases[5].first, kGrid, {0, 0}, {0, 0}, {4, 2}, 99);
  cases[6].second = "takes 200 bytes and came with 16";  // not what the shard is
  local(cases[6].first, {ifrt::DType::kU8, {100, 2}}, {0, 0}, {0, 0}, {4, 2});
  cases[7].second = "takes 8 bytes and came with 5";
  AddPiece(*cases[7].first.mutable_gather()->mutable_shards(0), half, {0, 0}, {0, 0}, {4, 2})
      .mutable_transfer()
      ->set_id(72);
  FakeBulk(cluster_.space).Fulfil(72, Bytes::OfString("short"));
  for (auto& [op, words] : cases) {
    const uint64_t seq = SendTo(0, op);
    cluster_.Settle();
    EXPECT_THAT(record(0).failure(seq).message(), HasSubstr(words)) << op.ShortDebugString();
    EXPECT_EQ(record(0).ended(seq), 1);
  }
  EXPECT_EQ(ReadNow(0, 1, 0), kSixteen);
}

TEST_F(ContextTest, AnExportThatWasReleasedEarlyHoldsNothing) {
  cluster_[0].engine->SetLaunchTime("slow", absl::Seconds(1));
  SendTo(0, MakeLoad(1, "slow", {0}, {}, {kPair}));
  SendTo(0, MakeLaunch(1, {}, {1}));
  const uint64_t seq = SendTo(0, MakeExport(1, 0, 71));
  cluster_.Settle();
  Op release;
  release.mutable_release()->add_transfers(71);
  SendTo(0, release);
  cluster_.executor.Advance(absl::Seconds(2));
  EXPECT_TRUE(record(0).done(seq));
  EXPECT_EQ(cluster_.space->held(), 0);
}

TEST_F(ContextTest, AnExportOfALostShardFailsItsPullers) {
  SendTo(0, MakeLoad(1, "f", {0}, {}, {kPair}));
  cluster_[0].engine->FailNextLaunch(absl::UnknownError("divided by zero"));
  SendTo(0, MakeLaunch(1, {}, {1}));
  const uint64_t seq = SendTo(0, MakeExport(1, 0, 71));
  Op gather;
  AddShard(gather, 2, 10, kPair);
  AddPiece(*gather.mutable_gather()->mutable_shards(0), kPair, {0}, {0}, {2}).mutable_transfer()->set_id(71);
  const uint64_t pull = SendTo(1, gather);
  cluster_.Settle();
  EXPECT_EQ(record(0).failure(seq), absl::UnknownError("divided by zero"));
  EXPECT_EQ(record(1).failure(pull), absl::UnknownError("divided by zero"));
}

// ---- Contexts ------------------------------------------------------------------------------------------------------

TEST_F(ContextTest, RunsCollectivesInOrder) {
  SendBoth(MakePut(1, kPair, kEight, {0, 1, 10, 11}));
  OpenWithProgram(5);
  EXPECT_TRUE(record(0).context(5).open());
  EXPECT_TRUE(record(1).context(5).open());
  std::vector<uint64_t> seqs;
  for (uint64_t i = 1; i < 20; ++i) seqs.push_back(SendBoth(MakeLaunch(5, {i}, {i + 1}, 5, {0})));
  const std::string got = ReadNow(1, 20, 11);
  std::string expected = kEight;
  for (int i = 1; i < 20; ++i) expected = AsBytes(SimOutput("f", 0, 11, {Print(expected)}));
  EXPECT_EQ(got, expected);
  for (uint64_t seq : seqs) {
    EXPECT_TRUE(record(0).done(seq));
    EXPECT_TRUE(record(1).done(seq));
  }
  EXPECT_EQ(cluster_.world->mismatched(), 0);
}

TEST_F(ContextTest, KeysGoThroughTheProxyWheneverTheyCome) {
  SendTo(0, MakeOpen(5, {0, 1}));
  cluster_.Settle();
  ASSERT_EQ(record(0).keys().size(), 1);
  EXPECT_EQ(record(0).keys()[0].context(), 5);
  EXPECT_EQ(record(0).keys()[0].key(), "sim/0");
  Op key;
  *key.mutable_key_value() = record(0).keys()[0];
  SendTo(1, key);  // host 1 was not told of the context yet
  cluster_.Settle();
  EXPECT_EQ(cluster_[1].engine->counts().keys, 0);
  SendTo(1, MakeOpen(5, {0, 1}));
  SendTo(1, key);  // it is opening
  cluster_.Settle();
  EXPECT_EQ(cluster_[1].engine->counts().keys, 2);
  SendTo(1, key);  // it is open
  EXPECT_EQ(cluster_[1].engine->counts().keys, 3);
  SendTo(1, MakeClose(5, absl::CancelledError("over")));
  cluster_.Settle();
  SendTo(1, key);
  EXPECT_EQ(cluster_[1].engine->counts().keys, 3);
}

TEST_F(ContextTest, NonsenseContextsFail) {
  std::vector<std::pair<Op, std::string>> cases = {
      {MakeOpen(0, {0, 1}), "opened before"},
      {MakeOpen(6, {1}), "no member"},
      {MakeOpen(7, {0, 0}), "twice"},
      {MakeOpen(8, {0, 1}, 1025), "at most 2048"},
      {MakeOpen(9, {0, 1}), "another incarnation"},
      {MakeClose(77, absl::CancelledError("x")), "context 77 isn't open"},
  };
  cases[4].first.mutable_open_context()->mutable_members(0)->set_incarnation(3);
  for (auto& [op, words] : cases) {
    SendTo(0, op);
    cluster_.Settle();
    const uint64_t id = op.has_open_context() ? op.open_context().context() : op.close_context().context();
    EXPECT_FALSE(record(0).context(id).open());
    EXPECT_THAT(record(0).context(id).status().message(), HasSubstr(words));
  }
  EXPECT_EQ(cluster_[0].host->Stats().contexts, 1);
}

TEST_F(ContextTest, AContextThatCantOpenFailsWhatWaitsForIt) {
  cluster_[0].engine->FailNextOpen(absl::UnavailableError("no port"));
  SendTo(0, MakeOpen(5, {0, 1}));
  SendTo(0, MakeLoad(5, "f", {0, 1, 10, 11}, {kPair}, {kPair}, 5));
  SendTo(0, MakePut(1, kPair, kEight, {0, 1}));
  const uint64_t launch = SendTo(0, MakeLaunch(5, {1}, {2}, 5));
  cluster_.Settle();
  EXPECT_FALSE(record(0).context(5).open());
  EXPECT_THAT(record(0).context(5).status().message(), HasSubstr("no port"));
  EXPECT_THAT(record(0).loaded(5).message(), HasSubstr("no port"));
  EXPECT_THAT(record(0).failure(launch).message(), HasSubstr("no port"));
}

TEST_F(ContextTest, AMemberWithALostInputJoinsOnZeros) {
  SendBoth(MakePut(1, kPair, kEight, {0, 1, 10, 11}));
  SendTo(1, MakeDelete({1}));
  OpenWithProgram(5);
  const uint64_t launch = SendBoth(MakeLaunch(5, {1}, {2}, 5));
  cluster_.Settle();
  EXPECT_TRUE(record(0).done(launch));
  EXPECT_THAT(record(1).failure(launch).message(), HasSubstr("argument 0 of program 'f': array 1"));
  EXPECT_FALSE(record(1).failure_event(launch).peer());
  EXPECT_EQ(record(1).ended(launch), 1);
  EXPECT_THAT(ReadNow(1, 2, 10), HasSubstr("array 1"));
  // The context is sound: the next launch meets its counterpart.
  SendTo(1, MakePut(3, kPair, kEight, {10, 11}));
  SendTo(0, MakePut(3, kPair, kEight, {0, 1}));
  const uint64_t next = SendBoth(MakeLaunch(5, {3}, {4}, 5));
  cluster_.Settle();
  EXPECT_TRUE(record(0).done(next));
  EXPECT_TRUE(record(1).done(next));
  EXPECT_EQ(cluster_.world->mismatched(), 0);
}

TEST_F(ContextTest, AnInputThatMayFailLateIsWaitedFor) {
  OpenWithProgram(5);
  SendTo(0, MakePut(2, kPair, kEight, {0, 1}));
  cluster_[1].engine->SetLaunchTime("slow", absl::Seconds(1));
  SendTo(1, MakeLoad(6, "slow", {10, 11}, {}, {kPair}));
  cluster_[1].engine->FailNextLaunch(absl::UnknownError("divided by zero"));
  SendTo(1, MakeLaunch(6, {}, {2}));
  const uint64_t launch = SendBoth(MakeLaunch(5, {2}, {3}, 5));
  cluster_.Settle();
  EXPECT_EQ(cluster_[1].engine->counts().launches, 1);  // not yet launched
  cluster_.executor.Advance(absl::Seconds(2));
  EXPECT_TRUE(record(0).done(launch));  // it joined, on zeros
  EXPECT_EQ(record(1).failure(launch), absl::UnknownError("divided by zero"));
  EXPECT_EQ(cluster_.world->mismatched(), 0);
}

TEST_F(ContextTest, ADonationWaitsForEarlierUsersInOtherQueues) {
  SendBoth(MakePut(1, kPair, kEight, {0, 1, 10, 11}));
  OpenWithProgram(5);
  // The launch of context 5 waits for bytes, the local one that donates array 1 comes later in the order.
  Op put = MakePut(2, kPair, "", {0, 1});
  put.mutable_put()->mutable_sources(0)->mutable_transfer()->set_id(71);
  SendTo(0, put);
  SendTo(1, MakePut(2, kPair, kEight, {10, 11}));
  SendBoth(MakeLoad(6, "g", {0, 1, 10, 11}, {kPair, kPair}, {kPair}, 5));
  const uint64_t first = SendBoth(MakeLaunch(6, {1, 2}, {3}, 5));
  SendTo(0, MakeLoad(7, "h", {0, 1}, {kPair}, {kPair}));
  const uint64_t second = SendTo(0, MakeLaunch(7, {1}, {4}, 0, {0}));
  cluster_.Settle();
  EXPECT_EQ(record(0).ended(second), 0);
  FakeBulk(cluster_.space).Fulfil(71, Bytes::OfString(kEight));
  cluster_.Settle();
  EXPECT_TRUE(record(0).done(first));
  EXPECT_TRUE(record(0).done(second));
  EXPECT_EQ(ReadNow(0, 3, 0), AsBytes(SimOutput("g", 0, 0, {Print(kEight), Print(kEight)})));
}

TEST_F(ContextTest, ALostMemberIsAComplaintAndTheClosingNamesTheCause) {
  SendBoth(MakePut(1, kPair, kEight, {0, 1, 10, 11}));
  OpenWithProgram(5);
  const uint64_t before = SendBoth(MakeLaunch(5, {1}, {2}, 5));
  cluster_.Settle();
  // Host 1 gets no more of the launches, then dies.
  const uint64_t lost = SendTo(0, MakeLaunch(5, {2}, {3}, 5));
  cluster_.Settle();
  EXPECT_EQ(record(0).ended(lost), 0);
  cluster_[1].engine->Crash();
  cluster_.Settle();
  EXPECT_TRUE(record(0).failure_event(lost).peer());
  const uint64_t after = SendTo(0, MakeLaunch(5, {2}, {4}, 5));
  cluster_.Settle();
  EXPECT_TRUE(record(0).failure_event(after).peer());
  const absl::Status cause = absl::DataLossError("slice 1 is lost: host 1 was killed");
  SendTo(0, MakeClose(5, cause));
  const uint64_t closed = SendTo(0, MakeLaunch(5, {2}, {6}, 5));
  cluster_.Settle();
  EXPECT_FALSE(record(0).context(5).open());
  EXPECT_EQ(FromProto(record(0).context(5).status()), cause);
  EXPECT_EQ(record(0).failure(closed), cause);
  EXPECT_EQ(ReadNow(0, 2, 0), AsBytes(SimOutput("f", 0, 0, {Print(kEight)})));  // what was done stays
  EXPECT_TRUE(record(0).done(before));
  // The client is gone, but for what still names it.
  Op unload;
  unload.mutable_unload()->set_executable(5);
  SendTo(0, unload);
  cluster_.Settle();
  EXPECT_EQ(cluster_[0].engine->counts().open_contexts, 0);
}

TEST_F(ContextTest, ClosingEndsWhatHangs) {
  SendBoth(MakePut(1, kPair, kEight, {0, 1, 10, 11}));
  OpenWithProgram(5);
  cluster_[0].engine->HangNextLaunch();
  Op op = MakeLaunch(5, {1}, {2}, 5);
  *op.mutable_launch()->add_reads()->mutable_shard() = MakeRef(0, 0);
  op.mutable_launch()->mutable_reads(0)->set_read(50);
  const uint64_t hanging = SendTo(0, op);
  Op put = MakePut(3, kPair, "", {0, 1});
  put.mutable_put()->mutable_sources(0)->mutable_transfer()->set_id(71);
  SendTo(0, put);
  const uint64_t queued = SendTo(0, MakeLaunch(5, {3}, {4}, 5));
  const uint64_t local_put = SendTo(0, MakePut(6, kPair, kEight, {0}));
  cluster_.Settle();
  EXPECT_TRUE(record(0).done(local_put));
  EXPECT_EQ(record(0).ended(hanging), 0);
  const absl::Status cause = absl::DataLossError("slice 1 is lost");
  ASSERT_TRUE(cluster_[0].host->OnControl(MakeClose(5, cause).SerializeAsString()).ok());
  cluster_.Settle();
  for (uint64_t seq : {hanging, queued}) {
    EXPECT_EQ(record(0).failure(seq), cause);
    EXPECT_EQ(record(0).ended(seq), 1);
  }
  EXPECT_EQ(FromProto(record(0).read(50).status()), cause);
  EXPECT_THAT(ReadNow(0, 2, 0), HasSubstr("slice 1 is lost"));
  EXPECT_FALSE(record(0).context(5).open());
  EXPECT_EQ(cluster_[0].host->Stats().operations, 0);
  // A late end writes nothing.
  FakeBulk(cluster_.space).Fulfil(71, Bytes::OfString(kEight));
  EXPECT_THAT(ReadNow(0, 4, 0), HasSubstr("slice 1 is lost"));
  // The next context takes the arrays on.
  OpenWithProgram(6);
  const uint64_t again = SendBoth(MakeLaunch(6, {1}, {7}, 6));
  cluster_.Settle();
  EXPECT_TRUE(record(0).done(again));
}

TEST_F(ContextTest, ClosingWhileOpening) {
  SendTo(0, MakeOpen(5, {0, 1}));
  SendTo(0, MakeLoad(5, "f", {0, 10}, {}, {kPair}, 5));
  SendTo(0, MakeClose(5, absl::CancelledError("never mind")));
  cluster_.Settle();
  EXPECT_FALSE(record(0).context(5).open());
  EXPECT_EQ(cluster_[0].engine->counts().open_contexts, 0);
  EXPECT_THAT(record(0).loaded(5).message(), HasSubstr("never mind"));
}

TEST_F(ContextTest, AMemberThatCantLoadStopsTheContext) {
  SendBoth(MakePut(1, kPair, kEight, {0, 1, 10, 11}));
  cluster_[0].engine->FailNextLoad(absl::ResourceExhaustedError("no memory"));
  OpenWithProgram(5);
  SendBoth(MakeLoad(6, "g", {0, 1, 10, 11}, {kPair}, {kPair}, 5));
  const uint64_t first = SendBoth(MakeLaunch(5, {1}, {2}, 5));
  const uint64_t second = SendBoth(MakeLaunch(6, {1}, {3}, 5));
  cluster_.Settle();
  // Host 1 waits in its first launch; a second one here would pair with that.
  EXPECT_THAT(record(0).failure(first).message(), HasSubstr("no memory"));
  EXPECT_THAT(record(0).failure(second).message(), HasSubstr("no memory"));
  EXPECT_EQ(cluster_[0].engine->counts().launches, 0);
  EXPECT_EQ(record(1).ended(first), 0);
  SendBoth(MakeClose(5, absl::ResourceExhaustedError("host 0 has no memory")));
  cluster_.Settle();
  EXPECT_THAT(record(1).failure(first).message(), HasSubstr("host 0 has no memory"));
}

}  // namespace
}  // namespace parkway::engine
