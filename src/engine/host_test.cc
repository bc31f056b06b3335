#include "engine/host.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "base/limits.h"
#include "engine/host_testing.h"

namespace parkway::engine {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using namespace testing;  // NOLINT: host_testing.h

const Type kPair{ifrt::DType::kS32, {2}};
const Type kGrid{ifrt::DType::kU8, {4, 4}};
const std::string kEight = "abcdefgh";

std::string Letters(size_t n) {
  std::string text(n, '\0');
  for (size_t i = 0; i < n; ++i) text[i] = static_cast<char>('a' + i % 23);
  return text;
}
std::string AsBytes(uint64_t value) { return {reinterpret_cast<const char*>(&value), sizeof(value)}; }
uint64_t Print(const std::string& bytes) { return SimFingerprint(Bytes::OfString(bytes)); }

class HostTest : public ::testing::Test {
 protected:
  uint64_t Send(Op op) { return cluster_.Send(0, std::move(op)); }
  const Record& record() { return cluster_[0].record; }
  EngineHost& host() { return *cluster_[0].host; }
  SimEngine& engine() { return *cluster_[0].engine; }
  std::string ReadNow(uint64_t array, int device) {
    const uint64_t read = 1000 + ++reads_;
    Send(MakeRead(array, device, read));
    cluster_.Settle();
    EXPECT_TRUE(record().was_read(read)) << "array " << array;
    if (!record().was_read(read)) return "";
    const absl::Status status = FromProto(record().read(read).status());
    return status.ok() ? record().read(read).inline_bytes() : status.ToString();
  }

  Cluster cluster_{1};
  uint64_t reads_ = 0;
};

// ---- Start ---------------------------------------------------------------------------------------------------------

TEST_F(HostTest, TheFirstEventSaysWhoTheEngineIs) {
  ASSERT_EQ(record().messages().size(), 1);
  const EngineHello hello = record().messages()[0].hello();
  EXPECT_EQ(hello.incarnation(), 100);
  EXPECT_EQ(hello.devices(), 2);
  EXPECT_EQ(hello.engine(), "sim");
  EXPECT_EQ(hello.bulk_endpoint(), "test:0");
  EXPECT_THAT(hello.memory_kinds(), ElementsAre("device", "pinned_host", "unpinned_host"));
}

TEST_F(HostTest, ServesOneProxyThatKnowsItsDevices) {
  ProxyHello hello;
  hello.add_devices(0);
  hello.add_devices(1);
  EXPECT_THAT(host().Start(hello, [](const fabric::Frame&) {}).message(), HasSubstr("already serves"));
  FakeBulk bulk(cluster_.space);
  EngineHost other({}, engine(), bulk, SimThreads(cluster_.executor, *cluster_[0].pool));
  hello.add_devices(2);
  EXPECT_EQ(other.Start(hello, [](const fabric::Frame&) {}).code(), absl::StatusCode::kFailedPrecondition);
  hello.mutable_devices()->Clear();
  hello.add_devices(3);
  hello.add_devices(3);
  EXPECT_EQ(other.Start(hello, [](const fabric::Frame&) {}).code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(HostTest, WhatIsNoOperationIsRefused) {
  EXPECT_FALSE(host().OnMessage("\xff\xff garbage").ok());
  EXPECT_FALSE(host().OnControl("\xff\xff garbage").ok());
}

// ---- Put, read, delete ---------------------------------------------------------------------------------------------

TEST_F(HostTest, PutsAndReadsBack) {
  const uint64_t put = Send(MakePut(7, kPair, kEight, {0, 1}));
  EXPECT_EQ(ReadNow(7, 0), kEight);
  EXPECT_EQ(ReadNow(7, 1), kEight);
  EXPECT_TRUE(record().done(put));
  EXPECT_EQ(host().Stats().arrays, 1);
  const uint64_t removed = Send(MakeDelete({7}));
  cluster_.Settle();
  EXPECT_TRUE(record().done(removed));
  EXPECT_EQ(host().Stats().arrays, 0);
  EXPECT_EQ(engine().counts().live_arrays, 0);
  EXPECT_THAT(ReadNow(7, 0), HasSubstr("deleted, donated or never made"));
}

TEST_F(HostTest, PutsPartsOfOneSourceOnEachDevice) {
  Op op;
  Put& put = *op.mutable_put();
  put.set_array(7);
  SetType(*put.add_sources()->mutable_type(), kGrid);
  put.mutable_sources(0)->set_inline_bytes("0123456789abcdef");
  for (int device : {0, 1, 10}) {  // the last is another host's
    PutShard& shard = *put.add_shards();
    shard.set_device(device);
    SetType(*shard.mutable_type(), {ifrt::DType::kU8, {4, 2}});
    SetRegion(*shard.mutable_region(), {0, device == 0 ? 0 : 2}, {4, 2});
  }
  Send(op);
  EXPECT_EQ(ReadNow(7, 0), "014589cd");
  EXPECT_EQ(ReadNow(7, 1), "2367abef");
}

TEST_F(HostTest, PutsStridedSources) {
  Op op = MakePut(7, {ifrt::DType::kU8, {2, 3}}, "abcdef", {0});
  op.mutable_put()->mutable_sources(0)->add_byte_strides(1);  // column-major
  op.mutable_put()->mutable_sources(0)->add_byte_strides(2);
  Send(op);
  EXPECT_EQ(ReadNow(7, 0), "acebdf");
}

TEST_F(HostTest, BytesOnTheirWayHoldUpOnlyWhatNeedsThem) {
  Op op = MakePut(7, kPair, "", {0});
  op.mutable_put()->mutable_sources(0)->mutable_transfer()->set_id(55);
  const uint64_t put = Send(op);
  Send(MakeRead(7, 0, 1));
  Send(MakePut(8, kPair, kEight, {0}));
  EXPECT_EQ(ReadNow(8, 0), kEight);
  EXPECT_FALSE(record().was_read(1));
  EXPECT_EQ(record().ended(put), 0);
  FakeBulk(cluster_.space).Fulfil(55, Bytes::OfString("12345678"));
  cluster_.Settle();
  EXPECT_TRUE(record().done(put));
  EXPECT_EQ(record().read(1).inline_bytes(), "12345678");
}

TEST_F(HostTest, WholeSourcesAreNotCopied) {
  auto blob = Blob::Create(1 << 20);
  ASSERT_TRUE(blob.ok());
  const Bytes bytes = Blob::Share(*blob);
  Op op = MakePut(7, {ifrt::DType::kU8, {1 << 20}}, "", {0, 1});
  FakeBulk bulk(cluster_.space);
  *op.mutable_put()->mutable_sources(0)->mutable_transfer() = bulk.Offer(bytes);
  Send(op);
  Send(MakeRead(7, 1, 1));
  cluster_.Settle();
  // What the sim engine views is what it was given; too large to come inline, and shareable as it is.
  ASSERT_TRUE(record().read(1).has_transfer());
  Bytes read;
  bulk.Fetch(record().read(1).transfer(), [&](absl::StatusOr<Bytes> got) { read = *got; });
  EXPECT_EQ(read.data, bytes.data);
}

TEST_F(HostTest, ALargeReadIsOffered) {
  const std::string text = Letters(limits::kInlineReadBytes + 1);
  Send(MakePut(7, {ifrt::DType::kU8, {static_cast<int64_t>(text.size())}}, text, {0}));
  Send(MakeRead(7, 0, 1));
  cluster_.Settle();
  ASSERT_TRUE(record().read(1).has_transfer());
  EXPECT_EQ(record().read(1).transfer().size(), text.size());
  FakeBulk(cluster_.space).Fetch(record().read(1).transfer(), [&](absl::StatusOr<Bytes> got) {
    EXPECT_EQ(got->view(), text);
    EXPECT_FALSE(got->local_path.empty());
  });
  Op release;
  release.mutable_release()->add_transfers(record().read(1).transfer().id());
  Send(release);
  EXPECT_EQ(cluster_.space->held(), 0);
}

TEST_F(HostTest, AFailedPutFailsWhatUsesIt) {
  Op op = MakePut(7, kPair, "", {0});
  op.mutable_put()->mutable_sources(0)->mutable_transfer()->set_id(55);
  const uint64_t put = Send(op);
  FakeBulk(cluster_.space).Fail(55, absl::UnavailableError("the client left"));
  cluster_.Settle();
  EXPECT_EQ(record().failure(put), absl::UnavailableError("the client left"));
  EXPECT_THAT(ReadNow(7, 0), HasSubstr("the client left"));
  Send(MakeLoad(1, "f", {0}, {kPair}, {kPair}));
  const uint64_t launch = Send(MakeLaunch(1, {7}, {8}));
  EXPECT_THAT(ReadNow(8, 0), HasSubstr("the client left"));
  EXPECT_EQ(record().failure(launch), absl::UnavailableError("the client left"));
  EXPECT_EQ(engine().counts().launches, 0);
}

TEST_F(HostTest, AnEngineThatCantPutSaysSo) {
  engine().FailNextPut(absl::ResourceExhaustedError("no memory"));
  const uint64_t put = Send(MakePut(7, kPair, kEight, {0}));
  cluster_.Settle();
  EXPECT_EQ(record().failure(put), absl::ResourceExhaustedError("no memory"));
}

TEST_F(HostTest, ADeletedShardLeavesTheOthers) {
  Send(MakePut(7, kPair, kEight, {0, 1}));
  Op op;
  *op.mutable_delete_()->add_shards() = MakeRef(7, 0);
  Send(op);
  EXPECT_THAT(ReadNow(7, 0), HasSubstr("no shard on device 0"));
  EXPECT_EQ(ReadNow(7, 1), kEight);
  op.mutable_delete_()->mutable_shards(0)->set_device(1);
  Send(op);
  cluster_.Settle();
  EXPECT_EQ(host().Stats().arrays, 0);
  EXPECT_EQ(engine().counts().live_arrays, 0);
}

TEST_F(HostTest, NonsenseFailsAndHarmsNothing) {
  Send(MakePut(1, kPair, kEight, {0}));
  Send(MakeLoad(1, "f", {0}, {kPair}, {kPair}));
  cluster_.Settle();
  std::vector<std::pair<Op, std::string>> cases;
  auto add = [&](Op op, const std::string& words) -> Op& {
    cases.emplace_back(std::move(op), words);
    return cases.back().first;
  };
  add(Op(), "kind");
  add(MakePut(1, kPair, kEight, {0}), "already exists");
  add(MakePut(0, kPair, kEight, {0}), "array 0");
  add(MakePut(20, kPair, "short", {0}), "takes 8 bytes and came with 5");
  add(MakePut(21, kPair, kEight, {0, 0}), "two shards on device 0");
  add(MakePut(22, kPair, kEight, {0}), "memory kind 'moon'").mutable_put()->set_memory_kind("moon");
  add(MakePut(23, kPair, kEight, {0}), "host buffer 1 of 1").mutable_put()->mutable_shards(0)->set_source(1);
  add(MakePut(24, kPair, kEight, {0}), "host buffer -1").mutable_put()->mutable_shards(0)->set_source(-1);
  add(MakePut(25, {ifrt::DType::kS32, {-2}}, kEight, {0}), "making array 25");
  add(MakePut(26, {ifrt::DType::kS32, {int64_t{1} << 62, 8}}, kEight, {0}), "making array 26");
  add(MakePut(27, {static_cast<ifrt::DType>(77), {2}}, kEight, {0}), "77");
  add(MakePut(28, {ifrt::DType::kToken, {}}, "", {0}), "no bytes on devices");
  SetRegion(*add(MakePut(29, kPair, kEight, {0}), "leaves").mutable_put()->mutable_shards(0)->mutable_region(), {1},
            {2});
  SetRegion(*add(MakePut(30, kPair, kEight, {0}), "leaves").mutable_put()->mutable_shards(0)->mutable_region(), {-1},
            {2});
  SetRegion(
      *add(MakePut(31, kPair, kEight, {0}), "can't be made of").mutable_put()->mutable_shards(0)->mutable_region(), {0},
      {1});
  SetRegion(*add(MakePut(32, kPair, kEight, {0}), "region of 2").mutable_put()->mutable_shards(0)->mutable_region(),
            {0, 0}, {1, 1});
  add(MakePut(33, kPair, kEight, {0}), "negative byte stride").mutable_put()->mutable_sources(0)->add_byte_strides(-4);
  add(MakePut(34, kPair, kEight, {0}), "takes").mutable_put()->mutable_sources(0)->add_byte_strides(1 << 30);
  Op& strides = add(MakePut(35, kPair, kEight, {0}), "2 strides");
  strides.mutable_put()->mutable_sources(0)->add_byte_strides(4);
  strides.mutable_put()->mutable_sources(0)->add_byte_strides(4);
  add(MakeDelete({99}), "array 99");
  Op shard;
  *shard.mutable_delete_()->add_shards() = MakeRef(1, 5);
  add(shard, "device 5");
  add(MakeLaunch(9, {1}, {40}), "executable 9");
  add(MakeLaunch(1, {}, {41}), "takes 1 arguments");
  add(MakeLaunch(1, {1}, {}), "takes 1 arguments");
  add(MakeLaunch(1, {1, 1}, {42}), "takes 1 arguments");
  add(MakeLaunch(1, {1}, {43}, 0, {1}), "can't donate argument 1");
  add(MakeLaunch(1, {1}, {44}, 0, {-1}), "can't donate argument -1");
  add(MakeLaunch(1, {1}, {1}), "already exists");
  add(MakeLaunch(1, {99}, {45}), "argument 0 of program 'f': array 99");
  add(MakeLaunch(1, {1}, {46}, 3), "context 0");
  Op& read = add(MakeLaunch(1, {1}, {47}), "read of output 1");
  *read.mutable_launch()->add_reads()->mutable_shard() = MakeRef(1, 0);
  Op& operand = add(MakeLaunch(1, {0}, {48}), "2 shards for 1 devices");
  *operand.mutable_launch()->mutable_arguments(0)->add_shards() = MakeRef(1, 0);
  *operand.mutable_launch()->mutable_arguments(0)->add_shards() = MakeRef(1, 0);
  Op& place = add(MakeLaunch(1, {0}, {49}), "device 1 instead of device 0");
  *place.mutable_launch()->mutable_arguments(0)->add_shards() = MakeRef(1, 1);
  Op unload;
  unload.mutable_unload()->set_executable(9);
  add(unload, "executable 9");
  Op exported;
  *exported.mutable_export_()->mutable_shard() = MakeRef(99, 0);
  add(exported, "array 99");
  Op exported_part;
  *exported_part.mutable_export_()->mutable_shard() = MakeRef(1, 0);
  exported_part.mutable_export_()->set_transfer(66);
  SetRegion(*exported_part.mutable_export_()->mutable_region(), {1}, {9});
  add(exported_part, "leaves");
  add(MakeClose(0, {}), "always open");
  Op key;
  key.mutable_key_value()->set_key("k");
  add(key, "takes no keys");
  std::vector<uint64_t> seqs;
  for (auto& [op, words] : cases) seqs.push_back(Send(op));
  cluster_.Settle();
  for (size_t i = 0; i < cases.size(); ++i) {
    EXPECT_THAT(record().failure(seqs[i]).ToString(), HasSubstr(cases[i].second)) << cases[i].first.ShortDebugString();
    EXPECT_EQ(record().ended(seqs[i]), 1) << cases[i].first.ShortDebugString();
    for (const char* word : {"DATA_LOSS", "NOT_FOUND", "INTERNAL", "DEADLINE_EXCEEDED"}) {
      EXPECT_THAT(record().failure(seqs[i]).ToString(), Not(HasSubstr(word)));
    }
  }
  EXPECT_EQ(ReadNow(1, 0), kEight);
  EXPECT_EQ(host().Stats().operations, 0);
}

TEST_F(HostTest, ControlDoesNotTakeOrderedOperations) {
  Op op = MakePut(7, kPair, kEight, {0});
  op.set_seq(900);
  ASSERT_TRUE(host().OnControl(op.SerializeAsString()).ok());
  cluster_.Settle();
  EXPECT_THAT(record().failure(900).message(), HasSubstr("one order"));
  EXPECT_EQ(host().Stats().arrays, 0);
  Send(MakePut(8, kPair, kEight, {0}));
  ASSERT_TRUE(host().OnControl(MakeRead(8, 0, 1).SerializeAsString()).ok());
  cluster_.Settle();
  EXPECT_EQ(record().read(1).inline_bytes(), kEight);
}

// ---- Launches ------------------------------------------------------------------------------------------------------

TEST_F(HostTest, ChainsOfLaunches) {
  Send(MakePut(7, kPair, kEight, {0, 1}));
  Send(MakeLoad(1, "f", {0, 1}, {kPair}, {kPair, kPair}));
  const uint64_t first = Send(MakeLaunch(1, {7}, {8, 9}));
  const uint64_t second = Send(MakeLaunch(1, {9}, {10, 11}));
  const std::string f1 = AsBytes(SimOutput("f", 1, 1, {Print(kEight)}));
  EXPECT_EQ(ReadNow(9, 1), f1);
  EXPECT_EQ(ReadNow(10, 1), AsBytes(SimOutput("f", 0, 1, {Print(f1)})));
  EXPECT_TRUE(record().done(first));
  EXPECT_TRUE(record().done(second));
  EXPECT_TRUE(record().loaded(1).ok());
  Send(MakeDelete({7, 8, 9, 10, 11}));
  Op unload;
  unload.mutable_unload()->set_executable(1);
  Send(unload);
  cluster_.Settle();
  EXPECT_EQ(engine().counts().live_arrays, 0);
  EXPECT_EQ(engine().counts().live_executables, 0);
}

TEST_F(HostTest, ReadsRideInTheCompletion) {
  Send(MakePut(7, kPair, kEight, {0, 1}));
  Send(MakeLoad(1, "f", {0, 1}, {kPair}, {kPair}));
  cluster_.Settle();
  Op op = MakeLaunch(1, {7}, {8});
  for (int device : {0, 1, 10}) {  // the last is another host's to answer
    Read& read = *op.mutable_launch()->add_reads();
    *read.mutable_shard() = MakeRef(0, device);
    read.set_read(50 + device);
  }
  const size_t before = record().messages().size();
  const uint64_t launch = Send(op);
  cluster_.Settle();
  ASSERT_EQ(record().messages().size(), before + 1);
  const Events events = record().messages().back();
  EXPECT_THAT(events.done(), ElementsAre(launch));
  ASSERT_EQ(events.reads_size(), 2);
  EXPECT_EQ(record().read(51).inline_bytes(), AsBytes(SimOutput("f", 0, 1, {Print(kEight)})));
  EXPECT_FALSE(record().was_read(60));
}

TEST_F(HostTest, ALargeReadOfALaunchComesApart) {
  const Type large{ifrt::DType::kU8, {100'000}};
  Send(MakeLoad(1, "f", {0}, {}, {large}));
  Op op = MakeLaunch(1, {}, {8});
  *op.mutable_launch()->add_reads()->mutable_shard() = MakeRef(0, 0);
  op.mutable_launch()->mutable_reads(0)->set_read(50);
  const uint64_t launch = Send(op);
  cluster_.Settle();
  EXPECT_TRUE(record().done(launch));
  EXPECT_EQ(record().read(50).transfer().size(), 100'000);
}

TEST_F(HostTest, ArgumentsShardByShard) {
  Send(MakePut(7, kPair, kEight, {0}));
  Send(MakePut(8, kPair, "12345678", {1}));
  Send(MakeLoad(1, "f", {1, 0}, {kPair}, {kPair}));
  Op op = MakeLaunch(1, {0}, {9});
  *op.mutable_launch()->mutable_arguments(0)->add_shards() = MakeRef(8, 1);
  *op.mutable_launch()->mutable_arguments(0)->add_shards() = MakeRef(7, 0);
  op.mutable_launch()->add_donated(0);
  Send(op);
  EXPECT_EQ(ReadNow(9, 0), AsBytes(SimOutput("f", 0, 0, {Print(kEight)})));
  EXPECT_EQ(ReadNow(9, 1), AsBytes(SimOutput("f", 0, 1, {Print("12345678")})));
  EXPECT_EQ(host().Stats().arrays, 1);  // both were donated
}

TEST_F(HostTest, AWrongTypeIsFoundBeforeTheLaunch) {
  Send(MakePut(7, {ifrt::DType::kF32, {2}}, kEight, {0}));
  Send(MakeLoad(1, "f", {0}, {kPair}, {kPair}));
  const uint64_t launch = Send(MakeLaunch(1, {7}, {8}));
  EXPECT_THAT(ReadNow(8, 0),
              HasSubstr("argument 0 of program 'f': its shard on device 0 is f32[2], but the program takes s32[2]"));
  EXPECT_EQ(record().failure(launch).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(engine().counts().launches, 0);
}

TEST_F(HostTest, AMissingShardIsFoundBeforeTheLaunch) {
  Send(MakePut(7, kPair, kEight, {0}));
  Send(MakeLoad(1, "f", {0, 1}, {kPair}, {kPair}));
  const uint64_t launch = Send(MakeLaunch(1, {7}, {8}));
  cluster_.Settle();
  EXPECT_THAT(record().failure(launch).message(), HasSubstr("no shard on device 1"));
  EXPECT_EQ(engine().counts().launches, 0);
}

TEST_F(HostTest, FailuresGoOnWithTheirFirstCause) {
  Send(MakeLoad(1, "f", {0}, {}, {kPair}));
  Send(MakeLoad(2, "g", {0}, {kPair}, {kPair}));
  engine().FailNextLaunch(absl::UnknownError("divided by zero"));
  const uint64_t first = Send(MakeLaunch(1, {}, {8}));
  const uint64_t second = Send(MakeLaunch(2, {8}, {9}));
  Op op = MakeLaunch(2, {9}, {10});
  *op.mutable_launch()->add_reads()->mutable_shard() = MakeRef(0, 0);
  op.mutable_launch()->mutable_reads(0)->set_read(50);
  const uint64_t third = Send(op);
  cluster_.Settle();
  for (uint64_t seq : {first, second, third}) {
    EXPECT_EQ(record().failure(seq), absl::UnknownError("divided by zero"));
    EXPECT_EQ(record().ended(seq), 1);
    EXPECT_FALSE(record().failure_event(seq).peer());
  }
  EXPECT_EQ(FromProto(record().read(50).status()), absl::UnknownError("divided by zero"));
  EXPECT_THAT(ReadNow(9, 0), HasSubstr("divided by zero"));
  // The engine works on.
  Send(MakeLaunch(1, {}, {11}));
  EXPECT_EQ(ReadNow(11, 0), AsBytes(SimOutput("f", 0, 0, {})));
}

TEST_F(HostTest, ARefusedLaunchFailsItsOutputs) {
  Send(MakeLoad(1, "f", {0}, {}, {kPair}));
  engine().RefuseNextLaunch(absl::ResourceExhaustedError("no memory"));
  const uint64_t launch = Send(MakeLaunch(1, {}, {8}));
  EXPECT_THAT(ReadNow(8, 0), HasSubstr("no memory"));
  EXPECT_EQ(record().failure(launch), absl::ResourceExhaustedError("no memory"));
  EXPECT_EQ(host().Stats().operations, 0);
}

TEST_F(HostTest, DonatedArgumentsAreGone) {
  Send(MakePut(7, kPair, kEight, {0}));
  Send(MakeLoad(1, "f", {0}, {kPair}, {kPair}));
  Send(MakeRead(7, 0, 1));
  const uint64_t launch = Send(MakeLaunch(1, {7}, {8}, 0, {0}));
  const uint64_t late = Send(MakeLaunch(1, {7}, {9}));
  cluster_.Settle();
  EXPECT_EQ(record().read(1).inline_bytes(), kEight);  // came before
  EXPECT_TRUE(record().done(launch));
  EXPECT_THAT(record().failure(late).message(), HasSubstr("array 7"));
  EXPECT_EQ(host().Stats().arrays, 2);
}

TEST_F(HostTest, LoadsByContentOnce) {
  Op load = MakeLoad(1, "f", {0}, {}, {kPair});
  Send(load);
  Op again = MakeLoad(2, "f", {1}, {}, {kPair});
  again.mutable_load()->clear_inline_bytes();
  Send(again);
  Op unknown = MakeLoad(3, "g", {1}, {}, {kPair});
  unknown.mutable_load()->clear_inline_bytes();
  Send(unknown);
  Send(MakeLaunch(2, {}, {8}));
  cluster_.Settle();
  EXPECT_TRUE(record().loaded(1).ok());
  EXPECT_TRUE(record().loaded(2).ok());
  EXPECT_EQ(record().loaded(3).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(record().loaded(3).message(), HasSubstr("program 'g'"));
  EXPECT_EQ(ReadNow(8, 1), AsBytes(SimOutput("f", 0, 1, {})));
}

TEST_F(HostTest, LaunchesWaitForALoadWhoseBytesAreOnTheirWay) {
  Op load = MakeLoad(1, "f", {0}, {}, {kPair});
  load.mutable_load()->clear_inline_bytes();
  load.mutable_load()->mutable_transfer()->set_id(55);
  Send(load);
  const uint64_t launch = Send(MakeLaunch(1, {}, {8}));
  Op unload;
  unload.mutable_unload()->set_executable(1);
  Send(unload);
  cluster_.Settle();
  EXPECT_EQ(record().ended(launch), 0);
  FakeBulk(cluster_.space).Fulfil(55, Bytes::OfString("program"));
  cluster_.Settle();
  EXPECT_TRUE(record().done(launch));
}

TEST_F(HostTest, ALoadThatSharesBytesSurvivesTheEndOfTheOneThatBringsThem) {
  Op load = MakeLoad(1, "step", {0}, {}, {});
  load.mutable_load()->clear_inline_bytes();
  load.mutable_load()->mutable_transfer()->set_id(55);
  Send(load);
  load.mutable_load()->set_executable(2);
  load.mutable_load()->mutable_transfer()->set_id(56);
  Send(load);
  cluster_.Settle();
  FakeBulk other(cluster_.space);
  other.Fail(55, absl::AbortedError("nobody offers these bytes any more"));
  cluster_.Settle();
  EXPECT_FALSE(record().was_loaded(2));
  other.Fulfil(56, Bytes::OfString("program step"));
  cluster_.Settle();
  EXPECT_TRUE(record().loaded(2).ok()) << record().loaded(2);
}

TEST_F(HostTest, AFailedLoadFailsItsLaunches) {
  engine().FailNextLoad(absl::InvalidArgumentError("not for this CPU"));
  Send(MakeLoad(1, "f", {0}, {}, {kPair}));
  const uint64_t launch = Send(MakeLaunch(1, {}, {8}));
  cluster_.Settle();
  EXPECT_THAT(record().loaded(1).message(), HasSubstr("program 'f'"));
  EXPECT_THAT(record().failure(launch).message(), HasSubstr("not for this CPU"));
  EXPECT_THAT(ReadNow(8, 0), HasSubstr("not for this CPU"));
}

TEST_F(HostTest, NonsenseLoadsFail) {
  Send(MakeLoad(1, "f", {0}, {}, {kPair}));
  std::vector<std::pair<Op, std::string>> cases = {
      {MakeLoad(2, "f", {10}, {}, {}), "none of its devices"},
      {MakeLoad(3, "f", {0, 0}, {}, {}), "twice"},
      {MakeLoad(4, "f", {0}, {{static_cast<ifrt::DType>(77), {}}}, {}), "parameter 0"},
      {MakeLoad(5, "f", {0}, {}, {{ifrt::DType::kF32, {-1}}}), "output 0"},
      {MakeLoad(6, "f", {0}, {}, {}, 77), "context 77"},
  };
  for (auto& [op, words] : cases) {
    Send(op);
    cluster_.Settle();
    EXPECT_THAT(record().loaded(op.load().executable()).message(), HasSubstr(words));
  }
  EXPECT_EQ(host().Stats().executables, 1);
}

TEST_F(HostTest, AbortStopsWhatHasNotBegun) {
  Op put = MakePut(7, kPair, "", {0});
  put.mutable_put()->mutable_sources(0)->mutable_transfer()->set_id(55);
  Send(put);
  Send(MakeLoad(1, "f", {0}, {kPair}, {kPair}));
  const uint64_t first = Send(MakeLaunch(1, {7}, {8}));
  const uint64_t second = Send(MakeLaunch(1, {7}, {9}));
  Op abort;
  abort.mutable_abort()->set_launch_seq(first);
  ASSERT_TRUE(host().OnControl(abort.SerializeAsString()).ok());
  FakeBulk(cluster_.space).Fulfil(55, Bytes::OfString(kEight));
  cluster_.Settle();
  EXPECT_EQ(record().failure(first).code(), absl::StatusCode::kCancelled);
  EXPECT_TRUE(record().done(second));
}

TEST_F(HostTest, StopsWithWorkUnderWay) {
  engine().HangNextLaunch();
  Send(MakeLoad(1, "f", {0}, {}, {kPair}));
  Send(MakeLaunch(1, {}, {8}));
  Send(MakeRead(8, 0, 1));
  cluster_.Settle();
  host().Stop();
  const size_t before = record().messages().size();
  Send(MakePut(9, kPair, kEight, {0}));
  Send(MakeLaunch(1, {}, {10}));
  cluster_.Settle();
  EXPECT_EQ(record().messages().size(), before);
  EXPECT_EQ(host().Stats().arrays, 0);
}

}  // namespace
}  // namespace parkway::engine
