#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

#include "base/limits.h"
#include "runtime/core_fixture.h"

namespace parkway::runtime {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

ifrt::ShardingPtr Rows(std::vector<int> devices) {
  return *ifrt::Sharding::Tiled(*ifrt::DeviceList::Make(devices),
                                *ifrt::TileAssignment::Iota({static_cast<int64_t>(devices.size()), 1}), {});
}

ifrt::ShardingPtr Replicated(std::vector<int> devices, ifrt::MemoryKind memory = std::nullopt) {
  return *ifrt::Sharding::Replicated(*ifrt::DeviceList::Make(devices), std::move(memory));
}

// Two hosts of two devices: 0 and 1, 2 and 3. Arrays are f32[4,4].
class ReshardTest : public ::testing::Test {
 protected:
  ReshardTest() : fixture({{"cpu", 1, 2}, {"cpu", 1, 2}}) {
    fixture.UpAll();
    session = fixture.core->OpenSession("test");
  }
  ScriptedEngine& engine(int host) { return fixture.engines[host]; }
  void Run() { fixture.executor.RunUntilIdle(); }
  void DoneAll() {
    for (int host = 0; host < 2; ++host) fixture.DoneAll(host);
  }
  static ArraySpec Spec(ifrt::ShardingPtr sharding, std::vector<int64_t> dims = {4, 4}) {
    return ArraySpec{ifrt::DType::kF32, *ifrt::Shape::Make(dims), std::move(sharding)};
  }
  // An array that is there.
  void Put(Handle handle, const ArraySpec& spec) {
    auto bytes = std::make_shared<PendingBytes>();
    bytes->Set(Bytes::OfString(std::string(*spec.shape.ByteSize(spec.dtype), 'x')));
    ASSERT_TRUE(session->MakeArrayFromHostBuffer(handle, spec, bytes, {}).ok());
    Run();
    DoneAll();
  }
  Handle Compile(std::vector<ifrt::ShardingPtr> inputs, std::vector<ifrt::ShardingPtr> outputs, bool donate = false) {
    absl::StatusOr<CompileReply> reply = session->CompileReshard({donate, std::move(inputs), std::move(outputs)});
    EXPECT_TRUE(reply.ok()) << reply.status();
    return reply->executable;
  }
  absl::StatusOr<ExecuteReply> Execute(Handle executable, std::vector<Handle> arguments,
                                       std::vector<Handle> results = {}, std::vector<int> keep = {}) {
    absl::StatusOr<ExecuteReply> reply = session->Execute({.executable = executable,
                                                           .arguments = arguments,
                                                           .non_donatable = keep,
                                                           .results = results,
                                                           .fill_status = true});
    Run();
    return reply;
  }
  std::shared_ptr<std::optional<absl::Status>> Watch(Handle future) {
    auto seen = std::make_shared<std::optional<absl::Status>>();
    session->CheckFuture(future, [seen](absl::Status status) { *seen = std::move(status); });
    return seen;
  }
  absl::Status ErrorOf(Handle array) {
    absl::Status error = absl::UnknownError("pending");
    session->WhenReady({array}, [&](absl::Status status) { error = std::move(status); });
    Run();
    return error;
  }

  CoreFixture fixture;
  std::unique_ptr<Session> session;
};

TEST_F(ReshardTest, IsAnExecutableOfItsInputsDevices) {
  absl::StatusOr<CompileReply> reply =
      session->CompileReshard({true, {Rows({3, 1})}, {Replicated({0, 2, 1}, "pinned_host")}});
  ASSERT_TRUE(reply.ok()) << reply.status();
  EXPECT_THAT(reply->devices, ElementsAre(3, 1));
  EXPECT_EQ(reply->program->name(), "reshard");
  EXPECT_THAT(reply->program->donated(), ElementsAre(0));
  EXPECT_THAT(reply->program->text(), HasSubstr("[0,2,1]"));
  EXPECT_TRUE(Watch(reply->ready_future)->has_value());
  EXPECT_TRUE(session->Executable(reply->executable).ok());
  EXPECT_TRUE(session->DestructExecutable(reply->executable).ok());
  EXPECT_FALSE(session->Executable(reply->executable).ok());
  EXPECT_FALSE(session->DestructExecutable(reply->executable).ok());
}

TEST_F(ReshardTest, MovesEachArgumentStraightToItsHosts) {
  Put(1, Spec(Rows({0, 1})));
  Put(2, Spec(Rows({1, 0}), {8, 2}));
  Handle reshard = Compile({Rows({0, 1}), Rows({1, 0})}, {Rows({2, 3}), Replicated({1}, "pinned_host")});
  absl::StatusOr<ExecuteReply> reply = Execute(reshard, {1, 2});
  ASSERT_TRUE(reply.ok()) << reply.status();
  ASSERT_EQ(reply->outputs.size(), 2u);
  EXPECT_EQ(reply->outputs[0].spec.sharding, Rows({2, 3}));
  EXPECT_THAT(reply->outputs[1].spec.shape.dims(), ElementsAre(8, 2));
  EXPECT_EQ(engine(0).Of(Op::kExport).size(), 2u);
  ASSERT_EQ(engine(1).Of(Op::kGather).size(), 1u);
  EXPECT_EQ(engine(1).Of(Op::kGather)[0]->gather().shards_size(), 2);
  ASSERT_EQ(engine(0).Of(Op::kGather).size(), 1u);
  const Gather& local = engine(0).Of(Op::kGather)[0]->gather();
  EXPECT_EQ(local.memory_kind(), "pinned_host");
  ASSERT_EQ(local.shards(0).pieces_size(), 2);
  EXPECT_TRUE(local.shards(0).pieces(0).has_local() && local.shards(0).pieces(1).has_local());
  EXPECT_FALSE(*session->IsDeleted(1));
}

TEST_F(ReshardTest, ItsStatusComesWhenAllBytesAreThere) {
  Put(1, Spec(Rows({0, 1})));
  absl::StatusOr<ExecuteReply> reply = Execute(Compile({Rows({0, 1})}, {Replicated({0, 2})}), {1});
  ASSERT_TRUE(reply.ok()) << reply.status();
  auto status = Watch(reply->status_handle);
  fixture.DoneAll(0);
  EXPECT_FALSE(status->has_value());
  fixture.DoneAll(1);
  EXPECT_EQ(*status, absl::OkStatus());
}

TEST_F(ReshardTest, DonatedArgumentsAreGoneAndTheirBytesAreFreedBehindTheMove) {
  Put(1, Spec(Rows({0, 1})));
  Put(2, Spec(Rows({0, 1})));
  Handle reshard = Compile({Rows({0, 1}), Rows({0, 1})}, {Rows({2, 3}), Rows({2, 3})}, true);
  ASSERT_TRUE(Execute(reshard, {1, 2}, {11, 12}, {1}).ok());
  EXPECT_TRUE(*session->IsDeleted(1));
  EXPECT_FALSE(*session->IsDeleted(2));
  fixture.executor.Advance(limits::kDeleteDelay);
  ASSERT_EQ(engine(0).Of(Op::kDelete).size(), 1u);
  EXPECT_LT(engine(0).Of(Op::kExport)[1]->seq(), engine(0).Of(Op::kDelete)[0]->seq());
  DoneAll();
  EXPECT_EQ(ErrorOf(11), absl::OkStatus());
  EXPECT_EQ(ErrorOf(12), absl::OkStatus());
}

TEST_F(ReshardTest, WhereNothingChangesNoEngineHearsOfIt) {
  Put(1, Spec(Rows({0, 2})));
  size_t before = engine(0).ops.size();
  absl::StatusOr<ExecuteReply> reply = Execute(Compile({Rows({0, 2})}, {Rows({0, 2})}, true), {1});
  ASSERT_TRUE(reply.ok()) << reply.status();
  EXPECT_EQ(engine(0).ops.size(), before);
  EXPECT_EQ(*Watch(reply->status_handle), absl::OkStatus());
  EXPECT_TRUE(*session->IsDeleted(1));
  EXPECT_FALSE(*session->IsDeleted(reply->outputs[0].handle));
}

TEST_F(ReshardTest, AConcreteArrayLiesAsTheProgramSays) {
  ifrt::Shape shape = *ifrt::Shape::Make({4, 4});
  for (int device : {0, 2}) Put(static_cast<Handle>(1 + device), Spec(Replicated({device}), {2, 4}));
  ifrt::ShardingPtr concrete =
      *ifrt::Sharding::ConcreteEven(*ifrt::DeviceList::Make({0, 2}), shape, *ifrt::Shape::Make({2, 4}), false);
  ASSERT_TRUE(session->Assemble(5, Spec(concrete), {1, 3}, CopySemantics::kReuseInput).ok());
  // Its second shard is the first one of the program's.
  ASSERT_TRUE(Execute(Compile({Rows({2, 0})}, {Replicated({1})}), {5}).ok());
  ASSERT_EQ(engine(0).Of(Op::kGather).size(), 1u);
  int locals = 0;
  for (const Piece& piece : engine(0).Of(Op::kGather)[0]->gather().shards(0).pieces()) {
    if (!piece.has_local()) continue;
    ++locals;
    EXPECT_EQ(piece.local().device(), 0);
    EXPECT_THAT(piece.to().start(), ElementsAre(2, 0));
  }
  EXPECT_EQ(locals, 1);
}

TEST_F(ReshardTest, WhatDoesNotFitIsRefusedAndNothingMoves) {
  Put(1, Spec(Rows({0, 1})));
  Put(2, Spec(Rows({2, 3})));
  Put(3, Spec(Replicated({0, 1}), {4}));
  Handle reshard = Compile({Rows({0, 1}), Rows({0, 1})}, {Rows({2, 3}), Rows({2, 3})}, true);
  auto words = [&](std::vector<Handle> arguments, std::vector<Handle> results = {}) {
    absl::Status status = Execute(reshard, std::move(arguments), std::move(results)).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  EXPECT_THAT(words({1}), HasSubstr("reshard of 2 arrays: 1 arguments"));
  EXPECT_THAT(words({1, 2}), HasSubstr("argument 1 (f32[4,4]) lies on devices [2,3]"));
  EXPECT_THAT(words({1, 3}), HasSubstr("argument 1"));
  EXPECT_THAT(words({1, 99}), HasSubstr("argument 1: there is no array with handle 99"));
  EXPECT_THAT(words({1, 1}, {20}), HasSubstr("1 result handles"));
  EXPECT_THAT(words({1, 1}, {20, 20}), HasSubstr("handle"));
  EXPECT_EQ(ErrorOf(20).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(engine(1).Of(Op::kGather).empty());
  EXPECT_FALSE(*session->IsDeleted(1));
}

TEST_F(ReshardTest, TypesStayThoseOfTheFirstExecution) {
  Put(1, Spec(Rows({0, 1})));
  Put(2, Spec(Rows({0, 1}), {8, 4}));
  Handle reshard = Compile({Rows({0, 1})}, {Rows({2, 3})});
  ASSERT_TRUE(Execute(reshard, {1}).ok());
  ASSERT_TRUE(Execute(reshard, {1}, {10}).ok());
  EXPECT_THAT(std::string(Execute(reshard, {2}, {11}).status().message()), HasSubstr("was f32[4,4]"));
  EXPECT_THAT(session->Describe(11)->shape.dims(), ElementsAre(4, 4));
  EXPECT_EQ(ErrorOf(11).code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(ReshardTest, AHostThatIsLostMeanwhileIsInTheStatusAndTheOutputs) {
  Put(1, Spec(Rows({0, 1})));
  Handle reshard = Compile({Rows({0, 1})}, {Rows({2, 3})}, true);
  absl::StatusOr<ExecuteReply> reply = Execute(reshard, {1});
  ASSERT_TRUE(reply.ok()) << reply.status();
  auto status = Watch(reply->status_handle);
  fixture.Down(0, "killed by signal 9 (SIGKILL)");
  ASSERT_TRUE(engine(1).up);
  fixture.Fail(1, engine(1).Of(Op::kGather)[0]->seq(), absl::StatusCode::kUnavailable, "nobody there", true);
  Run();
  ASSERT_TRUE(status->has_value());
  EXPECT_EQ((*status)->code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string((*status)->message()), HasSubstr("slice 0, host 0"));
  EXPECT_EQ(ErrorOf(reply->outputs[0].handle).code(), absl::StatusCode::kDataLoss);
  // A slice that is down is no reason to refuse a call: its results carry the error.
  Put(2, Spec(Rows({2, 3})));
  absl::StatusOr<ExecuteReply> back = Execute(Compile({Rows({2, 3})}, {Rows({0, 1})}), {2});
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(ErrorOf(back->outputs[0].handle).code(), absl::StatusCode::kDataLoss);
}

TEST_F(ReshardTest, StringsAreRefused) {
  ArraySpec spec = Spec(Replicated({0}));
  spec.dtype = ifrt::DType::kString;
  auto bytes = std::make_shared<PendingBytes>();
  bytes->Set(Bytes::OfString("strings"));
  ASSERT_TRUE(session->MakeArrayFromHostBuffer(1, spec, bytes, {}).ok());
  EXPECT_EQ(Execute(Compile({Replicated({0})}, {Replicated({1})}), {1}).status().code(),
            absl::StatusCode::kUnimplemented);
}

TEST_F(ReshardTest, ASessionThatEndsMeanwhileLeavesNothing) {
  Put(1, Spec(Rows({0, 1})));
  absl::StatusOr<ExecuteReply> reply = Execute(Compile({Rows({0, 1})}, {Rows({2, 3})}), {1});
  ASSERT_TRUE(reply.ok());
  auto status = Watch(reply->status_handle);
  session.reset();
  DoneAll();
  EXPECT_EQ(fixture.core->Stats().arrays, 0u);
}

}  // namespace
}  // namespace parkway::runtime
