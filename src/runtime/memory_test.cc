// Who holds how much of the engines' memory, and what has no room there.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>

#include "base/limits.h"
#include "runtime/core_fixture.h"

namespace parkway::runtime {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kArray = 32;  // bytes of f32[8]

class Memory : public ::testing::Test {
 protected:
  void Start(std::vector<SliceSpec> slices, int64_t limit) {
    fixture.emplace(std::move(slices));
    fixture->memory_bytes = limit;
    fixture->UpAll();
    session = fixture->core->OpenSession("test");
  }
  void TearDown() override {
    session.reset();
    other.reset();
  }
  void Run() { fixture->executor.RunUntilIdle(); }
  void Done() {
    for (size_t host = 0; host < fixture->engines.size(); ++host) fixture->DoneAll(static_cast<int>(host));
  }
  static ArraySpec On(int device) {
    return ArraySpec{ifrt::DType::kF32, *ifrt::Shape::Make({8}), *ifrt::Sharding::SingleDevice(device)};
  }
  absl::Status Put(Session& by, Handle handle, int device = 0) {
    auto bytes = std::make_shared<PendingBytes>();
    bytes->Set(Bytes::OfString(std::string(kArray, 'x')));
    EXPECT_TRUE(by.MakeArrayFromHostBuffer(handle, On(device), bytes, {}).ok());
    return End(by, handle);
  }
  absl::Status Put(Handle handle, int device = 0) { return Put(*session, handle, device); }
  // How the array's making ended, once the engines have done all that they were told.
  absl::Status End(Session& by, Handle handle) {
    Run();
    Done();
    absl::Status end = absl::UnknownError("it has not ended");
    by.WhenReady({&handle, 1}, [&](absl::Status status) { end = std::move(status); });
    Run();
    return end;
  }
  Handle Compile(const std::string& name, int parameters, int64_t temporary, bool donates = false) {
    CompiledProgram program = CoreFixture::MakeProgram(name, parameters, 1, {8}, 1, false);
    program.mutable_memory()->set_temp_bytes(temporary);
    if (donates) program.add_donated(0);
    fixture->compiler.programs[name] = program;
    Handle handle = 0;
    session->Compile(CompileRequest{name, "", {0}},
                     [&](absl::StatusOr<CompileReply> reply) { handle = reply->executable; });
    Run();
    return handle;
  }
  void Launch(Handle program, std::vector<Handle> arguments, Handle result) {
    ExecuteRequest request{.executable = program, .arguments = arguments, .results = {&result, 1}};
    ASSERT_TRUE(session->Execute(request).ok());
    Run();
  }
  int64_t Held() const { return session->Stats().bytes_held; }

  std::optional<CoreFixture> fixture;
  std::unique_ptr<Session> session, other;
};

TEST_F(Memory, AnArrayThatHasNoRoomIsAnErrorThatNamesTheHolders) {
  Start({{"cpu", 1, 2}}, 3 * kArray + 4);
  other = fixture->core->OpenSession("other");
  ASSERT_TRUE(Put(*other, 1).ok());
  ASSERT_TRUE(Put(1).ok());
  ASSERT_TRUE(Put(2, 1).ok());
  const size_t told = fixture->engines[0].ops.size();
  absl::Status full = Put(3, 1);
  EXPECT_EQ(full.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(full.message(), HasSubstr("device_put of f32[8] needs 32 bytes on device 1 (slice 0, host 0)"));
  EXPECT_THAT(full.message(), HasSubstr("where 96 bytes of 100 bytes are in use"));
  EXPECT_THAT(full.message(), HasSubstr("This client holds 64 bytes there: 64 bytes in 2 arrays of device_put"));
  EXPECT_THAT(full.message(), HasSubstr("other clients hold 32 bytes"));
  EXPECT_EQ(fixture->engines[0].ops.size(), told);
  session->Destruct({1});
  EXPECT_TRUE(Put(4).ok());
  EXPECT_EQ(Held(), 2 * kArray);
}

TEST_F(Memory, ALaunchNeedsRoomForItsOutputsAndWhileItRuns) {
  Start({{"cpu", 1, 1}}, 4 * kArray);
  Handle small = Compile("small", 1, kArray), large = Compile("large", 1, 3 * kArray);
  ASSERT_TRUE(Put(1).ok());
  Launch(small, {1}, 10);
  EXPECT_TRUE(End(*session, 10).ok());
  Launch(large, {1}, 11);
  absl::Status full = End(*session, 11);
  EXPECT_EQ(full.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(full.message(), HasSubstr("program 'large' needs 128 bytes (96 bytes of it while it runs) on device 0"));
  EXPECT_THAT(full.message(), HasSubstr("1 array of device_put"));
  EXPECT_THAT(full.message(), HasSubstr("1 array of program 'small'"));
  session->Destruct({10, 11});
  Launch(small, {1}, 12);
  EXPECT_TRUE(End(*session, 12).ok());
}

TEST_F(Memory, DonatedBytesMakeRoom) {
  Start({{"cpu", 1, 1}}, kArray);
  ASSERT_TRUE(Put(1).ok());
  Launch(Compile("keeps", 1, 0), {1}, 10);
  EXPECT_EQ(End(*session, 10).code(), absl::StatusCode::kResourceExhausted);
  Launch(Compile("step", 1, 0, true), {1}, 11);
  EXPECT_TRUE(End(*session, 11).ok());
  EXPECT_EQ(Held(), kArray);
}

TEST_F(Memory, WhatIsDispatchedTakesNoneBeforeItsTurn) {
  Start({{"cpu", 1, 1}}, 5 * kArray);
  Handle step = Compile("step", 1, 0);
  ASSERT_TRUE(Put(1).ok());
  // Each result is the next one's argument and dropped then: there are never more than a few at once.
  for (Handle i = 1; i < 200; ++i) {
    ExecuteRequest request{.executable = step, .arguments = {&i, 1}};
    const Handle next = i + 1;
    request.results = {&next, 1};
    ASSERT_TRUE(session->Execute(request).ok());
    session->Destruct({i});
  }
  Run();
  for (int i = 0; i < 200; ++i) Done();
  EXPECT_TRUE(End(*session, 200).ok());
  EXPECT_EQ(Held(), kArray);
}

TEST_F(Memory, AResultThatWasDeletedBeforeItsLaunchIsFreedByIt) {
  fixture.emplace(std::vector<SliceSpec>{{"cpu", 1, 1}});
  session = fixture->core->OpenSession("test");
  Launch(Compile("f", 0, 0), {}, 10);
  session->Destruct({10});
  fixture->Up(0);
  ASSERT_EQ(fixture->engines[0].Of(Op::kLaunch).size(), 1u);
  fixture->executor.Advance(limits::kDeleteDelay);
  const uint64_t output = fixture->engines[0].Of(Op::kLaunch)[0]->launch().outputs(0);
  ASSERT_EQ(fixture->engines[0].Of(Op::kDelete).size(), 1u);
  EXPECT_EQ(fixture->engines[0].Of(Op::kDelete)[0]->delete_().arrays(0), output);
  EXPECT_EQ(Held(), 0);
}

TEST_F(Memory, ACopyNeedsRoomWhereItGoes) {
  Start({{"cpu", 1, 1}, {"cpu", 1, 1}}, kArray);
  ASSERT_TRUE(Put(1, 0).ok());
  auto copy = [&](Handle result) {
    ASSERT_TRUE(
        session->Copy({1}, {result}, *ifrt::DeviceList::Make({1}), std::nullopt, CopySemantics::kAlwaysCopy).ok());
  };
  copy(2);
  EXPECT_TRUE(End(*session, 2).ok());
  copy(3);
  absl::Status full = End(*session, 3);
  EXPECT_EQ(full.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(full.message(), HasSubstr("copy of f32[8] needs 32 bytes on device 1 (slice 1, host 0)"));
}

TEST_F(Memory, EachSessionIsChargedForItsOwn) {
  Start({{"cpu", 1, 1}, {"cpu", 1, 1}}, 0);
  other = fixture->core->OpenSession("other");
  ASSERT_TRUE(Put(1, 0).ok());
  ASSERT_TRUE(Put(2, 1).ok());
  ASSERT_TRUE(Put(*other, 1, 1).ok());
  const CoreStats stats = fixture->core->Stats();
  EXPECT_EQ(stats.bytes_held, 3 * kArray);
  ASSERT_EQ(stats.by_session.size(), 2u);
  EXPECT_EQ(stats.by_session[0].first, "test");
  EXPECT_EQ(stats.by_session[0].second.bytes_held, 2 * kArray);
  EXPECT_EQ(stats.by_session[1].second.bytes_held, kArray);
  fixture->Down(1, "killed");
  EXPECT_EQ(Held(), kArray);
  EXPECT_EQ(other->Stats().bytes_held, 0);
  session->Destruct({1, 2});
  EXPECT_EQ(Held(), 0);
}

TEST_F(Memory, WhatWasKeptIsLostWhenNoEngineReturns) {
  Start({{"cpu", 1, 1}}, 0);
  other = fixture->core->OpenSession("dead");
  std::swap(session, other);
  Launch(Compile("endless", 0, 0), {}, 10);
  std::swap(session, other);
  auto put = std::make_shared<PendingBytes>();
  put->Set(Bytes::OfString(std::string(kArray, 'x')));
  ASSERT_TRUE(session->MakeArrayFromHostBuffer(1, On(0), put, {}).ok());
  Run();
  fixture->Done(0, fixture->engines[0].Of(Op::kPut)[0]->seq());
  other.reset();
  fixture->executor.Advance(limits::kEndlessProgramGrace);
  ASSERT_EQ(fixture->engines[0].control.size(), 1u);
  Events events;
  events.add_reads()->set_read(fixture->engines[0].control[0].read().read());
  fixture->Send(0, events);
  ASSERT_EQ(fixture->restarts.size(), 1u);
  fixture->Down(0, "killed", true);
  EXPECT_EQ(Held(), kArray);
  fixture->executor.Advance(limits::kHostReturnWait);
  EXPECT_EQ(Held(), 0);
  EXPECT_EQ(End(*session, 1).code(), absl::StatusCode::kDataLoss);
}

}  // namespace
}  // namespace parkway::runtime
