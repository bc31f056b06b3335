#include "runtime/core.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <optional>

#include "base/limits.h"
#include "base/status_wire.h"
#include "runtime/core_fixture.h"

namespace parkway::runtime {
namespace {

using ::testing::HasSubstr;

Bytes Floats(int count) {
  std::vector<float> values(count);
  std::iota(values.begin(), values.end(), 0.0f);
  return Bytes::OfString(std::string(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)));
}

PendingBytesRef Ready(Bytes bytes) {
  auto pending = std::make_shared<PendingBytes>();
  pending->Set(std::move(bytes));
  return pending;
}

ArraySpec On(int device, std::vector<int64_t> dims) {
  return ArraySpec{ifrt::DType::kF32, *ifrt::Shape::Make(dims), *ifrt::Sharding::SingleDevice(device)};
}

ArraySpec Tiled(std::vector<int> devices, std::vector<int64_t> dims) {
  xla::OpSharding proto;
  ifrt::DeviceListPtr list = *ifrt::DeviceList::Make(devices);
  std::vector<int64_t> grid(dims.size(), 1);
  grid[0] = static_cast<int64_t>(devices.size());
  return ArraySpec{ifrt::DType::kF32, *ifrt::Shape::Make(dims),
                   *ifrt::Sharding::Tiled(list, *ifrt::TileAssignment::Iota(grid), {})};
}

class CoreTest : public ::testing::Test {
 protected:
  void Start(std::vector<SliceSpec> slices, bool up = true) {
    fixture.emplace(std::move(slices));
    if (up) fixture->UpAll();
    session = fixture->core->OpenSession("test");
  }
  ScriptedEngine& engine(int host) { return fixture->engines[host]; }
  void Run() { fixture->executor.RunUntilIdle(); }
  // Another session starts a program that never ends, on device 0, and is gone.
  void LeaveAnEndlessProgram() {
    auto other = std::move(session);
    session = fixture->core->OpenSession("dead");
    Handle program = Compile("endless", 0, 1, {8}, {0}, false);
    ASSERT_TRUE(Execute(program, {}, {10}).ok());
    std::swap(session, other);
    other.reset();
    Run();
  }
  // Answers every order to keep a shard on host 0; what is there for the next engine.
  std::vector<ShardRef> AnswerKeep(const absl::Status& end = absl::OkStatus()) {
    std::vector<ShardRef> kept;
    Events events;
    for (const Op& op : engine(0).control) {
      if (op.kind_case() != Op::kRead) continue;
      EXPECT_TRUE(op.read().keep());
      ReadResult* result = events.add_reads();
      result->set_read(op.read().read());
      *result->mutable_status() = ToProto(end);
      if (end.ok()) kept.push_back(op.read().shard());
    }
    fixture->Send(0, events);
    return kept;
  }
  void PutOn(Handle handle, int device, std::vector<int64_t> dims = {8}) {
    ArraySpec spec = On(device, dims);
    ASSERT_TRUE(
        session->MakeArrayFromHostBuffer(handle, spec, Ready(Floats(static_cast<int>(spec.shape.num_elements()))), {})
            .ok());
    Run();
  }
  std::optional<absl::Status> WaitFor(std::vector<Handle> handles) {
    auto result = std::make_shared<std::optional<absl::Status>>();
    session->WhenReady(handles, [result](absl::Status status) { *result = status; });
    Run();
    return *result;
  }
  Handle Compile(const std::string& name, int parameters, int outputs, std::vector<int64_t> dims,
                 std::vector<int> devices, bool tiled, std::vector<int> donated = {}) {
    CompiledProgram program =
        CoreFixture::MakeProgram(name, parameters, outputs, std::move(dims), static_cast<int>(devices.size()), tiled);
    for (int index : donated) program.add_donated(index);
    fixture->compiler.programs[name] = program;
    return CompileKnown(name, std::move(devices));
  }
  Handle CompileKnown(const std::string& name, std::vector<int> devices) {
    Handle handle = 0;
    session->Compile(CompileRequest{name, "", std::move(devices)}, [&](absl::StatusOr<CompileReply> reply) {
      ASSERT_TRUE(reply.ok()) << reply.status();
      handle = reply->executable;
    });
    Run();
    return handle;
  }
  absl::StatusOr<ExecuteReply> Execute(Handle executable, std::vector<Handle> arguments, std::vector<Handle> results) {
    ExecuteRequest request{.executable = executable, .arguments = arguments, .results = results};
    absl::StatusOr<ExecuteReply> reply = session->Execute(request);
    Run();
    return reply;
  }

  std::optional<CoreFixture> fixture;
  std::unique_ptr<Session> session;
};

TEST_F(CoreTest, PutGoesToTheHostOfItsDeviceAndIsReadyWhenItEnds) {
  Start({{"cpu", 1, 2}, {"cpu", 1, 2}});
  PutOn(1, 2);
  EXPECT_TRUE(engine(0).ops.empty());
  ASSERT_EQ(engine(1).ops.size(), 1u);
  const parkway::Put& put = engine(1).ops[0].put();
  EXPECT_EQ(put.shards(0).device(), 2);
  EXPECT_EQ(put.sources(0).inline_bytes().size(), 32u);
  EXPECT_EQ(WaitFor({1}), std::nullopt);
  auto result = WaitFor({1});
  fixture->Done(1, engine(1).ops[0].seq());
  EXPECT_EQ(WaitFor({1}), absl::OkStatus());
}

TEST_F(CoreTest, ManyBytesTravelApartAndAreDroppedWhenPulled) {
  Start({{"cpu", 1, 1}});
  PutOn(1, 0, {1 << 16});
  const parkway::Put& put = engine(0).ops[0].put();
  EXPECT_TRUE(put.sources(0).has_transfer());
  EXPECT_EQ(fixture->transfers.held.size(), 1u);
  fixture->Done(0, engine(0).ops[0].seq());
  EXPECT_TRUE(fixture->transfers.held.empty());
}

TEST_F(CoreTest, StridesOfADenseBufferAreLeftOut) {
  Start({{"cpu", 1, 1}});
  ASSERT_TRUE(session->MakeArrayFromHostBuffer(1, On(0, {2, 4}), Ready(Floats(8)), {16, 4}).ok());
  ASSERT_TRUE(session->MakeArrayFromHostBuffer(2, On(0, {2, 4}), Ready(Floats(8)), {4, 8}).ok());
  Run();
  ASSERT_EQ(engine(0).ops.size(), 2u);
  EXPECT_TRUE(engine(0).ops[0].put().sources(0).byte_strides().empty());
  EXPECT_EQ(engine(0).ops[1].put().sources(0).byte_strides().size(), 2);
}

TEST_F(CoreTest, BytesThatComeLateHoldTheirSessionOnly) {
  Start({{"cpu", 1, 1}});
  auto late = std::make_shared<PendingBytes>();
  ASSERT_TRUE(session->MakeArrayFromHostBuffer(1, On(0, {8}), late, {}).ok());
  PutOn(2, 0);
  EXPECT_TRUE(engine(0).ops.empty());
  auto other = fixture->core->OpenSession("other");
  ASSERT_TRUE(other->MakeArrayFromHostBuffer(1, On(0, {8}), Ready(Floats(8)), {}).ok());
  Run();
  EXPECT_EQ(engine(0).ops.size(), 1u);
  late->Set(Floats(8));
  Run();
  EXPECT_EQ(engine(0).ops.size(), 3u);
}

TEST_F(CoreTest, AHostBufferOfTheWrongSizeIsAnErrorOfItsArray) {
  Start({{"cpu", 1, 1}});
  ASSERT_TRUE(session->MakeArrayFromHostBuffer(1, On(0, {8}), Ready(Floats(7)), {}).ok());
  auto status = WaitFor({1});
  ASSERT_TRUE(status.has_value());
  EXPECT_EQ(status->code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(status->message(), HasSubstr("28 bytes"));
}

TEST_F(CoreTest, WorkWaitsForHostsThatWereNeverThere) {
  Start({{"cpu", 1, 1}}, /*up=*/false);
  PutOn(1, 0);
  EXPECT_EQ(WaitFor({1}), std::nullopt);
  fixture->executor.Advance(absl::Hours(1));
  EXPECT_EQ(WaitFor({1}), std::nullopt);
  fixture->Up(0);
  ASSERT_EQ(engine(0).ops.size(), 1u);
}

TEST_F(CoreTest, ALaunchIsEncodedOnceAndReadyWhenEveryHostEnded) {
  Start({{"cpu", 1, 2}, {"cpu", 1, 2}});
  ArraySpec spec = Tiled({0, 1, 2, 3}, {8});
  std::vector<HostShards> shards;
  for (int i = 0; i < 4; ++i) {
    shards.push_back(HostShards{Ready(Floats(2)), ifrt::DType::kF32, *ifrt::Shape::Make({2}), {}, {i}});
  }
  ASSERT_TRUE(session->MakeArrayFromHostShards(1, spec, shards).ok());
  Handle program = Compile("sum", 1, 1, {8}, {0, 1, 2, 3}, true);
  auto reply = Execute(program, {1}, {10});
  ASSERT_TRUE(reply.ok()) << reply.status();
  EXPECT_TRUE(engine(0).Of(Op::kLaunch).empty());  // the context opens first
  fixture->DoneAll(0);
  EXPECT_TRUE(engine(0).Of(Op::kLaunch).empty());
  fixture->DoneAll(1);
  ASSERT_EQ(engine(0).Of(Op::kLaunch).size(), 1u);
  EXPECT_EQ(engine(0).Of(Op::kLaunch)[0]->SerializeAsString(), engine(1).Of(Op::kLaunch)[0]->SerializeAsString());
  uint64_t seq = engine(0).Of(Op::kLaunch)[0]->seq();
  fixture->Done(0, seq);
  EXPECT_EQ(WaitFor({10}), std::nullopt);
  fixture->Done(1, seq);
  EXPECT_EQ(WaitFor({10}), absl::OkStatus());
}

TEST_F(CoreTest, AnUnknownArgumentLeavesTypedErrorsUnderTheResults) {
  Start({{"cpu", 1, 1}});
  Handle program = Compile("f", 1, 1, {8}, {0}, false);
  EXPECT_FALSE(Execute(program, {77}, {10}).ok());
  auto status = WaitFor({10});
  ASSERT_TRUE(status.has_value());
  EXPECT_THAT(status->message(), HasSubstr("argument 0"));
  EXPECT_EQ(session->Describe(10)->shape.ToString(), "[8]");
}

TEST_F(CoreTest, ArgumentsOfAnotherTypeOrDeviceAreRefused) {
  Start({{"cpu", 1, 2}});
  Handle program = Compile("f", 1, 1, {8}, {0}, false);
  PutOn(1, 0, {4});
  PutOn(2, 1, {8});
  EXPECT_THAT(Execute(program, {1}, {}).status().message(), HasSubstr("f32[4]"));
  EXPECT_THAT(Execute(program, {2}, {}).status().message(), HasSubstr("devices [1]"));
  EXPECT_THAT(Execute(program, {}, {}).status().message(), HasSubstr("takes 1 arguments"));
}

TEST_F(CoreTest, ADonatedArgumentIsGoneAndFreedByItsLaunch) {
  Start({{"cpu", 1, 1}});
  PutOn(1, 0);
  Handle program = Compile("f", 1, 1, {8}, {0}, false, {0});
  ASSERT_TRUE(Execute(program, {1}, {10}).ok());
  EXPECT_TRUE(*session->IsDeleted(1));
  ASSERT_EQ(engine(0).Of(Op::kLaunch).size(), 1u);
  EXPECT_EQ(engine(0).Of(Op::kLaunch)[0]->launch().donated(0), 0);
  EXPECT_TRUE(engine(0).Of(Op::kDelete).empty());
}

TEST_F(CoreTest, BytesThatSomebodyElseHoldsAreNotDonated) {
  Start({{"cpu", 1, 1}});
  PutOn(1, 0);
  ASSERT_TRUE(session->Disassemble(1, {2}, CopySemantics::kReuseInput).ok());
  Handle program = Compile("f", 1, 1, {8}, {0}, false, {0});
  ASSERT_TRUE(Execute(program, {1}, {10}).ok());
  EXPECT_EQ(engine(0).Of(Op::kLaunch)[0]->launch().donated_size(), 0);
  EXPECT_FALSE(*session->IsDeleted(2));
}

TEST_F(CoreTest, ADeletedArrayServesWhatWasAskedBefore) {
  Start({{"cpu", 1, 1}}, /*up=*/false);
  PutOn(1, 0);
  std::optional<absl::StatusOr<Bytes>> read;
  session->Read(1, [&](absl::StatusOr<Bytes> bytes) { read = std::move(bytes); });
  session->Destruct({1});
  fixture->Up(0);
  fixture->executor.Advance(limits::kDeleteDelay);
  ASSERT_EQ(engine(0).ops.size(), 3u);
  EXPECT_EQ(engine(0).ops[0].kind_case(), Op::kPut);
  EXPECT_EQ(engine(0).ops[1].kind_case(), Op::kRead);
  Events events;
  ReadResult* result = events.add_reads();
  result->set_read(engine(0).ops[1].read().read());
  result->set_inline_bytes("bytes");
  fixture->Send(0, events);
  ASSERT_TRUE(read.has_value() && read->ok());
  EXPECT_EQ((*read)->view(), "bytes");
  EXPECT_EQ(engine(0).ops.back().kind_case(), Op::kDelete);
}

TEST_F(CoreTest, SplittingAndAssemblingTouchNoEngine) {
  Start({{"cpu", 1, 2}});
  ArraySpec spec = Tiled({0, 1}, {8});
  std::vector<HostShards> shards = {{Ready(Floats(4)), ifrt::DType::kF32, *ifrt::Shape::Make({4}), {}, {0}},
                                    {Ready(Floats(4)), ifrt::DType::kF32, *ifrt::Shape::Make({4}), {}, {1}}};
  ASSERT_TRUE(session->MakeArrayFromHostShards(1, spec, shards).ok());
  Run();
  size_t before = engine(0).ops.size();
  ASSERT_TRUE(session->Disassemble(1, {2, 3}, CopySemantics::kReuseInput).ok());
  session->Destruct({1});
  ASSERT_TRUE(session->Assemble(4, spec, {2, 3}, CopySemantics::kReuseInput).ok());
  Run();
  EXPECT_EQ(engine(0).ops.size(), before);
  session->Destruct({2, 3});
  Run();
  EXPECT_EQ(engine(0).ops.size(), before);
  session->Destruct({4});
  fixture->executor.Advance(limits::kDeleteDelay);
  ASSERT_EQ(engine(0).ops.size(), before + 1);
  EXPECT_EQ(engine(0).ops.back().delete_().arrays_size(), 1);
}

TEST_F(CoreTest, OneShardOfASplitArrayIsFreedAlone) {
  Start({{"cpu", 1, 2}});
  ArraySpec spec = Tiled({0, 1}, {8});
  std::vector<HostShards> shards = {{Ready(Floats(4)), ifrt::DType::kF32, *ifrt::Shape::Make({4}), {}, {0}},
                                    {Ready(Floats(4)), ifrt::DType::kF32, *ifrt::Shape::Make({4}), {}, {1}}};
  ASSERT_TRUE(session->MakeArrayFromHostShards(1, spec, shards).ok());
  ASSERT_TRUE(session->Disassemble(1, {2, 3}, CopySemantics::kReuseInput).ok());
  session->Destruct({1, 2});
  fixture->executor.Advance(limits::kDeleteDelay);
  ASSERT_EQ(engine(0).ops.back().kind_case(), Op::kDelete);
  EXPECT_EQ(engine(0).ops.back().delete_().shards(0).device(), 0);
}

TEST_F(CoreTest, ACopyToAnotherHostIsAnExportAndAGather) {
  Start({{"cpu", 1, 1}, {"cpu", 1, 1}});
  PutOn(1, 0);
  ASSERT_TRUE(session->Copy({1}, {2}, *ifrt::DeviceList::Make({1}), std::nullopt, CopySemantics::kAlwaysCopy).ok());
  Run();
  ASSERT_EQ(engine(0).Of(Op::kExport).size(), 1u);
  ASSERT_EQ(engine(1).Of(Op::kGather).size(), 1u);
  const Piece& piece = engine(1).Of(Op::kGather)[0]->gather().shards(0).pieces(0);
  EXPECT_EQ(piece.transfer().id(), engine(0).Of(Op::kExport)[0]->export_().transfer());
  EXPECT_EQ(piece.transfer().size(), 32u);
  fixture->Done(1, engine(1).Of(Op::kGather)[0]->seq());
  EXPECT_EQ(WaitFor({2}), absl::OkStatus());
  EXPECT_EQ(engine(0).Of(Op::kRelease).size(), 1u);
}

TEST_F(CoreTest, ALostHostIsDataLossNamingSliceAndReasonForWhatLayThere) {
  Start({{"cpu", 1, 1}, {"cpu", 1, 1}});
  PutOn(1, 0);
  PutOn(2, 1);
  fixture->DoneAll(0);
  fixture->DoneAll(1);
  fixture->Down(1, "killed by signal 9 (SIGKILL)");
  EXPECT_EQ(WaitFor({1}), absl::OkStatus());
  auto status = WaitFor({2});
  ASSERT_TRUE(status.has_value());
  EXPECT_EQ(status->code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(status->message(), HasSubstr("slice 1, host 0"));
  EXPECT_THAT(status->message(), HasSubstr("signal 9"));
  PutOn(3, 1);  // succeeds at dispatch
  status = WaitFor({3});
  ASSERT_TRUE(status.has_value());
  EXPECT_EQ(status->code(), absl::StatusCode::kDataLoss);
  fixture->Up(1);
  PutOn(4, 1);
  fixture->DoneAll(1);
  EXPECT_EQ(WaitFor({4}), absl::OkStatus());
}

ShardRef Kept(uint64_t array, int device) {
  ShardRef shard;
  shard.set_array(array);
  shard.set_device(device);
  return shard;
}

TEST_F(CoreTest, WhatLiesInHostMemoryOutlivesItsEngine) {
  Start({{"cpu", 1, 2}});
  for (Handle handle = 1; handle <= 4; ++handle) {
    ArraySpec spec = On(0, {8});
    if (handle != 2) spec.sharding = *ifrt::Sharding::SingleDevice(0, "pinned_host");
    ASSERT_TRUE(session->MakeArrayFromHostBuffer(handle, spec, Ready(Floats(8)), {}).ok());
  }
  Run();
  std::vector<uint64_t> ids;
  for (const Op* op : engine(0).Of(Op::kPut)) ids.push_back(op->put().array());
  fixture->DoneAll(0);
  fixture->Down(0, "killed by signal 9", /*returns=*/true);
  EXPECT_EQ(WaitFor({1}), absl::OkStatus());
  EXPECT_EQ(WaitFor({2})->code(), absl::StatusCode::kDataLoss);
  ASSERT_TRUE(session->Delete(std::vector<Handle>{4}).ok());
  Run();
  // Array 3 was not found; a shard that nobody knows, and one of an array that was deleted meanwhile, were.
  fixture->Up(0, {Kept(ids[0], 0), Kept(999999, 1), Kept(ids[3], 0)});
  EXPECT_EQ(WaitFor({1}), absl::OkStatus());
  EXPECT_EQ(WaitFor({3})->code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(WaitFor({3})->message(), HasSubstr("signal 9"));
  ASSERT_EQ(engine(0).Of(Op::kDelete).size(), 1u);
  const Delete& freed = engine(0).Of(Op::kDelete)[0]->delete_();
  ASSERT_EQ(freed.shards_size(), 2);
  EXPECT_EQ(freed.shards(0).array(), ids[3]);
  EXPECT_EQ(freed.shards(1).array(), 999999u);
  session->Read(1, [](const absl::StatusOr<Bytes>&) {});
  Run();
  ASSERT_EQ(engine(0).Of(Op::kRead).size(), 1u);
  EXPECT_EQ(engine(0).Of(Op::kRead)[0]->read().shard().array(), ids[0]);
}

TEST_F(CoreTest, HostMemoryIsLostWithItsWorker) {
  Start({{"cpu", 1, 1}});
  ArraySpec spec = On(0, {8});
  spec.sharding = *ifrt::Sharding::SingleDevice(0, "pinned_host");
  ASSERT_TRUE(session->MakeArrayFromHostBuffer(1, spec, Ready(Floats(8)), {}).ok());
  ASSERT_TRUE(session->MakeArrayFromHostBuffer(2, spec, Ready(Floats(8)), {}).ok());
  Run();
  fixture->DoneAll(0);
  fixture->Down(0, "killed by signal 9", /*returns=*/true);
  EXPECT_EQ(WaitFor({1}), absl::OkStatus());
  fixture->Down(0, "its worker is gone");
  EXPECT_EQ(WaitFor({1})->code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(WaitFor({2})->message(), HasSubstr("its worker is gone"));
}

TEST_F(CoreTest, APeersComplaintWaitsForTheCause) {
  Start({{"cpu", 1, 1}, {"cpu", 1, 1}});
  ArraySpec spec = Tiled({0, 1}, {8});
  std::vector<HostShards> shards = {{Ready(Floats(4)), ifrt::DType::kF32, *ifrt::Shape::Make({4}), {}, {0}},
                                    {Ready(Floats(4)), ifrt::DType::kF32, *ifrt::Shape::Make({4}), {}, {1}}};
  ASSERT_TRUE(session->MakeArrayFromHostShards(1, spec, shards).ok());
  Handle program = Compile("sum", 1, 1, {8}, {0, 1}, true);
  ASSERT_TRUE(Execute(program, {1}, {10}).ok());
  fixture->DoneAll(0);
  fixture->DoneAll(1);
  ASSERT_EQ(engine(0).Of(Op::kLaunch).size(), 1u);
  fixture->Fail(0, engine(0).Of(Op::kLaunch)[0]->seq(), absl::StatusCode::kUnknown, "Gloo: connection closed", true);
  EXPECT_EQ(WaitFor({10}), std::nullopt);
  fixture->Down(1, "killed by signal 9 (SIGKILL)");
  auto status = WaitFor({10});
  ASSERT_TRUE(status.has_value());
  EXPECT_EQ(status->code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(engine(0).control.back().kind_case(), Op::kCloseContext);
}

TEST_F(CoreTest, AComplaintWithoutACauseIsPassedOnInTheEnd) {
  Start({{"cpu", 1, 1}});
  PutOn(1, 0);
  Handle program = Compile("f", 1, 1, {8}, {0}, false);
  ASSERT_TRUE(Execute(program, {1}, {10}).ok());
  fixture->Fail(0, engine(0).Of(Op::kLaunch)[0]->seq(), absl::StatusCode::kUnknown, "Gloo: connection closed", true);
  fixture->executor.Advance(limits::kCauseWait);
  auto status = WaitFor({10});
  ASSERT_TRUE(status.has_value());
  EXPECT_EQ(status->code(), absl::StatusCode::kUnknown);
}

TEST_F(CoreTest, AProgramThatCrashesItsEngineIsNamedAndRefusedTheSecondTime) {
  Start({{"cpu", 1, 1}});
  Handle program = Compile("bad", 0, 1, {8}, {0}, false);
  for (int round = 0; round < limits::kCrashesUntilRefused; ++round) {
    Handle result = 10 + round;
    ASSERT_TRUE(Execute(program, {}, {result}).ok());
    fixture->Down(0, "killed by signal 6 (SIGABRT)", /*returns=*/true);
    auto status = WaitFor({result});
    ASSERT_TRUE(status.has_value());
    EXPECT_EQ(status->code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(status->message(), HasSubstr("'bad' crashed the engine"));
    fixture->Up(0);
  }
  ASSERT_TRUE(Execute(program, {}, {20}).ok());
  auto status = WaitFor({20});
  ASSERT_TRUE(status.has_value());
  EXPECT_THAT(status->message(), HasSubstr("is refused"));
  EXPECT_TRUE(engine(0).Of(Op::kLaunch).empty());
}

TEST_F(CoreTest, ExecutablesLoadAgainAfterAnEngineWasStartedAnew) {
  Start({{"cpu", 1, 1}});
  Handle program = Compile("f", 0, 1, {8}, {0}, false);
  ASSERT_TRUE(Execute(program, {}, {10}).ok());
  EXPECT_EQ(engine(0).Of(Op::kLoad).size(), 1u);
  ASSERT_TRUE(Execute(program, {}, {11}).ok());
  EXPECT_EQ(engine(0).Of(Op::kLoad).size(), 1u);
  fixture->Down(0, "killed by signal 9", true);
  fixture->Up(0);
  ASSERT_TRUE(Execute(program, {}, {12}).ok());
  EXPECT_EQ(engine(0).Of(Op::kLoad).size(), 1u);
  EXPECT_EQ(engine(0).Of(Op::kLaunch).size(), 1u);
}

TEST_F(CoreTest, AnEndlessProgramOfADeadSessionIsEvictedAndOthersKeepTheirArrays) {
  Start({{"cpu", 1, 1}});
  auto other = std::move(session);
  session = fixture->core->OpenSession("dead");
  Handle program = Compile("endless", 0, 1, {8}, {0}, false);
  ASSERT_TRUE(Execute(program, {}, {10}).ok());
  std::swap(session, other);
  PutOn(1, 0);
  fixture->Done(0, engine(0).Of(Op::kPut)[0]->seq());
  other.reset();
  Run();
  EXPECT_TRUE(fixture->restarts.empty());
  fixture->executor.Advance(limits::kEndlessProgramGrace);
  const std::vector<ShardRef> kept = AnswerKeep();
  ASSERT_EQ(kept.size(), 1u);
  ASSERT_EQ(fixture->restarts.size(), 1u);
  fixture->Down(0, "restarted", true);
  fixture->Up(0, kept);
  EXPECT_EQ(WaitFor({1}), absl::OkStatus());
  EXPECT_TRUE(engine(0).Of(Op::kDelete).empty());
}

TEST_F(CoreTest, WhatIsCancelledEndsSoAndItsSessionGoesOnWithItsArrays) {
  Start({{"cpu", 1, 1}});
  PutOn(1, 0);
  fixture->Done(0, engine(0).Of(Op::kPut)[0]->seq());
  const Handle endless = Compile("endless", 0, 1, {8}, {0}, false);
  ASSERT_TRUE(Execute(endless, {}, {10}).ok());
  const uint64_t id = fixture->core->Stats().by_session[0].second.session;
  fixture->executor.Advance(absl::Seconds(3));
  const SessionStats stats = fixture->core->Stats().by_session[0].second;
  EXPECT_EQ(stats.launches, 1u);
  EXPECT_EQ(stats.program, "program 'endless'");
  EXPECT_EQ(stats.running, absl::Seconds(3));

  fixture->core->CancelPrograms(id, "`parkway cancel` asked for it");
  fixture->executor.Advance(limits::kEndlessProgramGrace);
  const std::vector<ShardRef> kept = AnswerKeep();
  ASSERT_EQ(kept.size(), 1u);
  ASSERT_EQ(fixture->restarts.size(), 1u);
  EXPECT_THAT(fixture->restarts[0], HasSubstr("`parkway cancel` asked for it"));
  fixture->Down(0, "restarted", true);
  const auto ended = WaitFor({10});
  ASSERT_TRUE(ended.has_value());
  EXPECT_TRUE(absl::IsCancelled(*ended)) << *ended;
  EXPECT_THAT(ended->message(), HasSubstr("program 'endless' was cancelled: `parkway cancel` asked for it"));
  fixture->Up(0, kept);
  EXPECT_EQ(WaitFor({1}), absl::OkStatus());
  ASSERT_TRUE(Execute(endless, {}, {11}).ok());
  fixture->DoneAll(0);
  EXPECT_EQ(WaitFor({11}), absl::OkStatus());
}

TEST_F(CoreTest, WhatWaitsIsCancelledAtOnceAndOfThatSessionAlone) {
  Start({{"cpu", 1, 1}}, /*up=*/false);
  const Handle program = Compile("step", 0, 1, {8}, {0}, false);
  ASSERT_TRUE(Execute(program, {}, {10}).ok());
  auto other = std::move(session);
  session = fixture->core->OpenSession("other");
  const Handle others = CompileKnown("step", {0});
  ASSERT_TRUE(Execute(others, {}, {10}).ok());
  ASSERT_EQ(fixture->core->Stats().by_session[0].second.launches, 1u);
  fixture->core->CancelPrograms(fixture->core->Stats().by_session[0].second.session, "test");
  EXPECT_EQ(WaitFor({10}), std::nullopt);
  std::swap(session, other);
  const auto ended = WaitFor({10});
  ASSERT_TRUE(ended.has_value());
  EXPECT_EQ(*ended, absl::CancelledError("program 'step' was cancelled: test"));
  fixture->Up(0);
  EXPECT_EQ(engine(0).Of(Op::kLaunch).size(), 1u);
  fixture->core->CancelPrograms(/*session=*/0, "test");
  fixture->DoneAll(0);  // it ends within the grace, and is whole
  std::swap(session, other);
  EXPECT_EQ(WaitFor({10}), absl::OkStatus());
  fixture->executor.Advance(limits::kEndlessProgramGrace);
  EXPECT_TRUE(fixture->restarts.empty());
}

TEST_F(CoreTest, WhatAnEvictionCouldNotKeepIsAnErrorThatSaysWhy) {
  Start({{"cpu", 1, 1}});
  LeaveAnEndlessProgram();
  PutOn(1, 0);
  fixture->Done(0, engine(0).Of(Op::kPut)[0]->seq());
  fixture->executor.Advance(limits::kEndlessProgramGrace);
  AnswerKeep(absl::ResourceExhaustedError("no room in the arena"));
  ASSERT_EQ(fixture->restarts.size(), 1u);
  fixture->Down(0, "restarted", true);
  fixture->Up(0);
  auto status = WaitFor({1});
  ASSERT_TRUE(status.has_value());
  EXPECT_EQ(status->code(), absl::StatusCode::kAborted);
  EXPECT_THAT(status->message(), HasSubstr("no room in the arena"));
  EXPECT_THAT(status->message(), HasSubstr("Make it once more"));
}

TEST_F(CoreTest, WhatWasKeptAndDeletedMeanwhileIsFreed) {
  Start({{"cpu", 1, 1}});
  LeaveAnEndlessProgram();
  PutOn(1, 0);
  fixture->Done(0, engine(0).Of(Op::kPut)[0]->seq());
  fixture->executor.Advance(limits::kEndlessProgramGrace);
  const std::vector<ShardRef> kept = AnswerKeep();
  fixture->Down(0, "restarted", true);
  ASSERT_TRUE(session->Delete(std::vector<Handle>{1}).ok());
  Run();
  fixture->Up(0, kept);
  ASSERT_EQ(engine(0).Of(Op::kDelete).size(), 1u);
  EXPECT_EQ(engine(0).Of(Op::kDelete)[0]->delete_().shards(0).array(), kept[0].array());
}

TEST_F(CoreTest, WhatTheNextEngineDoesNotHaveIsLost) {
  Start({{"cpu", 1, 1}});
  LeaveAnEndlessProgram();
  PutOn(1, 0);
  fixture->Done(0, engine(0).Of(Op::kPut)[0]->seq());
  fixture->executor.Advance(limits::kEndlessProgramGrace);
  AnswerKeep();
  fixture->Down(0, "restarted", true);
  EXPECT_EQ(WaitFor({1}), absl::OkStatus());
  fixture->Up(0);
  EXPECT_EQ(WaitFor({1})->code(), absl::StatusCode::kDataLoss);
}

TEST_F(CoreTest, AnEvictionDoesNotWaitForTheCopiesOfASessionThatEnds) {
  Start({{"cpu", 1, 1}});
  LeaveAnEndlessProgram();
  PutOn(1, 0);
  fixture->Done(0, engine(0).Of(Op::kPut)[0]->seq());
  fixture->executor.Advance(limits::kEndlessProgramGrace);
  session.reset();
  AnswerKeep();
  EXPECT_EQ(fixture->restarts.size(), 1u);
}

TEST_F(CoreTest, AnEvictionWaitsAWhileForTheWorkOfOthers) {
  Start({{"cpu", 1, 1}});
  LeaveAnEndlessProgram();
  PutOn(1, 0);
  fixture->executor.Advance(limits::kEndlessProgramGrace);
  EXPECT_TRUE(engine(0).control.empty());
  fixture->Done(0, engine(0).Of(Op::kPut)[0]->seq());
  fixture->executor.Advance(limits::kEvictionDrain / 2);
  ASSERT_EQ(engine(0).control.size(), 1u);
  EXPECT_EQ(engine(0).control[0].kind_case(), Op::kRead);
}

TEST_F(CoreTest, AnEvictionDoesNotWaitForWhatIsStuckBehindTheProgram) {
  Start({{"cpu", 1, 1}});
  LeaveAnEndlessProgram();
  PutOn(1, 0);
  fixture->executor.Advance(limits::kEndlessProgramGrace + limits::kEvictionDrain);
  ASSERT_EQ(fixture->restarts.size(), 1u);
  fixture->Down(0, "restarted", true);
  auto status = WaitFor({1});
  ASSERT_TRUE(status.has_value());
  EXPECT_EQ(status->code(), absl::StatusCode::kAborted);
}

TEST_F(CoreTest, WhatStoodBehindAnEndlessProgramRunsOnTheNextEngine) {
  Start({{"cpu", 1, 1}});
  auto other = std::move(session);
  session = fixture->core->OpenSession("dead");
  Handle endless = Compile("endless", 0, 1, {8}, {0}, false);
  ASSERT_TRUE(Execute(endless, {}, {10}).ok());
  std::swap(session, other);
  PutOn(1, 0);
  fixture->Done(0, engine(0).Of(Op::kPut)[0]->seq());
  fixture->executor.Advance(limits::kShareWait);
  Handle program = Compile("f", 1, 1, {8}, {0}, false);
  ASSERT_TRUE(Execute(program, {1}, {2}).ok());
  ASSERT_TRUE(Execute(program, {2}, {3}).ok());
  ASSERT_TRUE(Execute(program, {3}, {4}).ok());
  std::optional<absl::StatusOr<Bytes>> read;
  session->Read(4, [&](absl::StatusOr<Bytes> bytes) { read = std::move(bytes); });
  session->Destruct({2});
  fixture->executor.Advance(limits::kShareWait * 3);
  const size_t stuck = engine(0).Of(Op::kLaunch).size();
  ASSERT_GE(stuck, 2u);
  other.reset();
  fixture->executor.Advance(limits::kEndlessProgramGrace + limits::kEvictionDrain);
  const std::vector<ShardRef> kept = AnswerKeep();
  ASSERT_EQ(kept.size(), 1u);
  ASSERT_EQ(fixture->restarts.size(), 1u);
  fixture->Down(0, "restarted", true);
  EXPECT_EQ(WaitFor({1, 3, 4}), std::nullopt);
  fixture->Up(0, kept);
  for (int i = 0; i < 5; ++i) fixture->DoneAll(0);
  EXPECT_EQ(engine(0).Of(Op::kLoad).size(), 1u);
  ASSERT_EQ(engine(0).Of(Op::kLaunch).size(), 3u);
  EXPECT_EQ(engine(0).ops[0].kind_case(), Op::kLoad);
  EXPECT_EQ(WaitFor({1, 3, 4}), absl::OkStatus());
  ASSERT_EQ(engine(0).Of(Op::kRead).size(), 1u);
  Events bytes;
  bytes.add_reads()->set_read(engine(0).Of(Op::kRead)[0]->read().read());
  bytes.mutable_reads(0)->set_inline_bytes(std::string(32, 'y'));
  fixture->Send(0, bytes);
  ASSERT_TRUE(read.has_value() && read->ok());
  fixture->executor.Advance(limits::kDeleteDelay);
  ASSERT_FALSE(engine(0).Of(Op::kDelete).empty());
}

TEST_F(CoreTest, ADeadSessionLeavesNothing) {
  Start({{"cpu", 1, 1}});
  PutOn(1, 0);
  Handle program = Compile("f", 1, 1, {8}, {0}, false);
  ASSERT_TRUE(Execute(program, {1}, {10}).ok());
  fixture->DoneAll(0);
  session.reset();
  Run();
  CoreStats stats = fixture->core->Stats();
  EXPECT_EQ(stats.sessions, 0);
  EXPECT_EQ(stats.bytes_held, 0);
  fixture->executor.Advance(limits::kDeleteDelay);
  int deleted = 0;
  for (const Op* op : engine(0).Of(Op::kDelete)) deleted += op->delete_().arrays_size();
  EXPECT_EQ(deleted, 2);
  EXPECT_EQ(engine(0).Of(Op::kUnload).size(), 1u);
}

TEST_F(CoreTest, AProgramsBytesStayUntilItsLastLaunchHasEnded) {
  Start({{"cpu", 1, 1}});
  PutOn(1, 0);
  fixture->DoneAll(0);
  Compile("f", 1, 1, {8}, {0}, false);
  fixture->compiler.programs["f"].set_executable(std::string(limits::kInlinePutBytes + 1, 'x'));
  Handle program = CompileKnown("f", {0});
  ASSERT_TRUE(Execute(program, {1}, {10}).ok());
  ASSERT_TRUE(session->DestructExecutable(program).ok());
  Run();
  EXPECT_EQ(engine(0).Of(Op::kUnload).size(), 1u);
  EXPECT_EQ(fixture->transfers.held.size(), 1u);
  fixture->DoneAll(0);
  EXPECT_TRUE(fixture->transfers.held.empty());
}

TEST_F(CoreTest, CreditsRunOutAndComeBack) {
  Start({{"cpu", 1, 1}});
  PutOn(1, 0);
  Handle program = Compile("f", 1, 1, {8}, {0}, false);
  Handle next = 100;
  while (session->HasCredit()) {
    ASSERT_TRUE(Execute(program, {1}, {next}).ok());
    ASSERT_LE(next++, Handle(100 + limits::kSessionOpsInFlight));
  }
  bool resumed = false;
  session->OnCredit([&] { resumed = true; });
  EXPECT_FALSE(resumed);
  for (int i = 0; i < limits::kSessionOpsInFlight && !resumed; ++i) fixture->DoneAll(0);
  EXPECT_TRUE(resumed);
  EXPECT_TRUE(session->HasCredit());
}

TEST_F(CoreTest, StringsStayInTheProxy) {
  Start({{"cpu", 1, 2}});
  ArraySpec spec = On(0, {2});
  spec.dtype = ifrt::DType::kString;
  ASSERT_TRUE(session->MakeArrayFromHostBuffer(1, spec, Ready(Bytes::OfString("two strings")), {}).ok());
  ASSERT_TRUE(session->Copy({1}, {2}, *ifrt::DeviceList::Make({1}), std::nullopt, CopySemantics::kAlwaysCopy).ok());
  Run();
  std::string read;
  session->Read(2, [&](absl::StatusOr<Bytes> bytes) { read = std::string(bytes->view()); });
  Run();
  EXPECT_EQ(read, "two strings");
  EXPECT_TRUE(engine(0).ops.empty());
}

TEST_F(CoreTest, AReshardTakesEachBoxFromTheNearestReplica) {
  Start({{"cpu", 2, 1}});
  ArraySpec rows = Tiled({0, 1}, {4, 4});
  std::vector<HostShards> shards;
  for (int i = 0; i < 2; ++i) {
    shards.push_back(HostShards{Ready(Floats(8)), ifrt::DType::kF32, *ifrt::Shape::Make({2, 4}), {}, {i}});
  }
  ASSERT_TRUE(session->MakeArrayFromHostShards(1, rows, shards).ok());
  ArraySpec whole{ifrt::DType::kF32, rows.shape, *ifrt::Sharding::Replicated(rows.sharding->devices())};
  ASSERT_TRUE(session->Reshard({1}, {2}, {whole}, CopySemantics::kAlwaysCopy).ok());
  Run();
  for (int host = 0; host < 2; ++host) {
    ASSERT_EQ(engine(host).Of(Op::kGather).size(), 1u);
    const GatherShard& shard = engine(host).Of(Op::kGather)[0]->gather().shards(0);
    ASSERT_EQ(shard.pieces_size(), 2);
    int local = shard.pieces(0).has_local() + shard.pieces(1).has_local();
    EXPECT_EQ(local, 1);
    EXPECT_EQ(engine(host).Of(Op::kExport).size(), 1u);
  }
}

}  // namespace
}  // namespace parkway::runtime
