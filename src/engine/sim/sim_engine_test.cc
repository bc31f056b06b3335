// The conformance suite on the sim engine, and what only it does.
#include "engine/sim/sim_engine.h"

#include <gmock/gmock.h>
#include <stdlib.h>

#include <cstring>

#include "engine/conformance.h"

namespace parkway::engine {
namespace {

using ::testing::HasSubstr;

// The clock of the engines that the suite makes: one after the other, each with the time of the process.
SimExecutor& Clock() {
  static auto* executor = new SimExecutor();
  return *executor;
}

EngineCase SimCase() {
  EngineCase engine;
  engine.name = "sim";
  engine.computes = false;
  engine.make = [](int devices) -> absl::StatusOr<std::unique_ptr<Engine>> {
    static auto* real = MakeSerialExecutor().release();
    return SimEngine::Create({.devices = devices}, *real);
  };
  engine.program = [](const std::string& name) { return ReadTestProgram(getenv("PARKWAY_TEST_PROGRAMS"), name); };
  return engine;
}
INSTANTIATE_TEST_SUITE_P(Sim, EngineConformance, testing::Values(SimCase()),
                         [](const auto& info) { return info.param.name; });

const Type kPair{ifrt::DType::kS32, {2}};

LoadSpec SpecOf(const std::string& name, ContextRef context, std::vector<int> ids, std::vector<int> locals) {
  LoadSpec spec;
  spec.name = name;
  spec.context = std::move(context);
  spec.program = Bytes::OfString(name);
  spec.device_ids = std::move(ids);
  spec.local_devices = std::move(locals);
  spec.outputs = {kPair};
  return spec;
}

class SimEngineTest : public testing::Test {
 protected:
  ContextRef Open(SimEngine& engine, int rank) {
    ContextRef context;
    ContextSpec spec{.id = 9, .rank = rank, .members = {{0, {0}}, {1, {10}}}};
    engine.OpenContext(std::move(spec), [&](absl::StatusOr<ContextRef> opened) { context = *std::move(opened); });
    clock_.RunUntilIdle();
    return context;
  }
  // Launches on a new executable; the result's status is kept.
  ArrayRef Launch(SimEngine& engine, const LoadSpec& spec, std::optional<absl::Status>& status) {
    auto executable = engine.Load(spec);
    EXPECT_TRUE(executable.ok());
    auto result = engine.Launch(**executable, {}, {}, [&](absl::Status end) { status = std::move(end); });
    EXPECT_TRUE(result.ok());
    clock_.RunUntilIdle();
    return result->outputs[0];
  }

  SimExecutor& clock_ = Clock();
  std::shared_ptr<SimWorld> world_ = std::make_shared<SimWorld>();
  std::unique_ptr<SimEngine> a_ = SimEngine::Create({.devices = 1}, clock_, world_);
  std::unique_ptr<SimEngine> b_ = SimEngine::Create({.devices = 1}, clock_, world_);
};

TEST_F(SimEngineTest, ProgramsTakeTheirTimeOneAfterTheOther) {
  a_->SetLaunchTime("f", absl::Milliseconds(10));
  std::optional<absl::Status> first, second;
  Launch(*a_, SpecOf("f", nullptr, {0}, {0}), first);
  Launch(*a_, SpecOf("f", nullptr, {0}, {0}), second);
  clock_.Advance(absl::Milliseconds(10));
  EXPECT_TRUE(first.has_value());
  EXPECT_FALSE(second.has_value());
  clock_.Advance(absl::Milliseconds(10));
  EXPECT_TRUE(second.has_value());
}

TEST_F(SimEngineTest, CollectivesMeet) {
  const ContextRef ca = Open(*a_, 0), cb = Open(*b_, 1);
  std::optional<absl::Status> at_a, at_b;
  Launch(*a_, SpecOf("f", ca, {0, 10}, {0, -1}), at_a);
  EXPECT_FALSE(at_a.has_value());
  Launch(*b_, SpecOf("f", cb, {0, 10}, {-1, 0}), at_b);
  EXPECT_EQ(at_a, absl::OkStatus());
  EXPECT_EQ(at_b, absl::OkStatus());
  EXPECT_EQ(world_->mismatched(), 0);
}

TEST_F(SimEngineTest, DifferentOrdersAreFound) {
  const ContextRef ca = Open(*a_, 0), cb = Open(*b_, 1);
  std::optional<absl::Status> at_a, at_b;
  Launch(*a_, SpecOf("f", ca, {0, 10}, {0, -1}), at_a);
  Launch(*b_, SpecOf("g", cb, {0, 10}, {-1, 0}), at_b);
  EXPECT_EQ(at_a->code(), absl::StatusCode::kAborted);
  EXPECT_EQ(at_b->code(), absl::StatusCode::kAborted);
  EXPECT_EQ(world_->mismatched(), 1);
}

TEST_F(SimEngineTest, ALostPeerIsComplainedOfAndAHungLaunchEndsWithItsContext) {
  const ContextRef ca = Open(*a_, 0), cb = Open(*b_, 1);
  std::optional<absl::Status> waiting, hanging;
  Launch(*a_, SpecOf("f", ca, {0, 10}, {0, -1}), waiting);
  a_->HangNextLaunch();
  const ArrayRef output = Launch(*a_, SpecOf("f", ca, {0, 10}, {0, -1}), hanging);
  b_->Crash();
  clock_.RunUntilIdle();
  EXPECT_THAT(waiting->message(), HasSubstr("Gloo"));
  EXPECT_FALSE(hanging.has_value());
  bool closed = false;
  a_->CloseContext(ca, absl::DataLossError("lost"), [&] { closed = true; });
  clock_.RunUntilIdle();
  EXPECT_TRUE(closed);
  EXPECT_EQ(hanging, absl::DataLossError("lost"));
  absl::Status seen;
  a_->View(output, 0, [&](absl::StatusOr<Bytes> bytes) { seen = bytes.status(); });
  clock_.RunUntilIdle();
  EXPECT_EQ(seen, absl::DataLossError("lost"));
}

TEST_F(SimEngineTest, AFrozenEngineGoesOnWhenItThaws) {
  std::optional<absl::Status> status;
  a_->Freeze();
  Launch(*a_, SpecOf("f", nullptr, {0}, {0}), status);
  EXPECT_FALSE(status.has_value());
  a_->Thaw();
  clock_.RunUntilIdle();
  EXPECT_EQ(status, absl::OkStatus());
  a_->Crash();
  status.reset();
  Launch(*a_, SpecOf("f", nullptr, {0}, {0}), status);
  clock_.Advance(absl::Seconds(1));
  EXPECT_FALSE(status.has_value());
}

}  // namespace
}  // namespace parkway::engine
