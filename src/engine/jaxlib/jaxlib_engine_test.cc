// The conformance suite on the jaxlib engine, and what only it does.
#include "engine/jaxlib/jaxlib_engine.h"

#include <gmock/gmock.h>
#include <stdlib.h>

#include <atomic>
#include <cstring>

#include "absl/time/clock.h"
#include "engine/conformance.h"

namespace parkway::engine {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

EngineCase JaxlibCase() {
  EngineCase engine;
  engine.name = "jaxlib";
  engine.make = [](int devices) { return MakeJaxlibEngine({.devices = devices}); };
  engine.program = [](const std::string& name) { return ReadTestProgram(getenv("PARKWAY_TEST_PROGRAMS"), name); };
  return engine;
}

INSTANTIATE_TEST_SUITE_P(Jaxlib, EngineConformance, testing::Values(JaxlibCase()),
                         [](const auto& info) { return info.param.name; });

class JaxlibEngineTest : public testing::Test {
 protected:
  const EngineCase case_ = JaxlibCase();
  Driver driver_{case_, 4};
};

TEST_F(JaxlibEngineTest, StrangeTypesCompute) {
  auto types = driver_.Load("types", {0});
  ASSERT_TRUE(types.ok()) << types.status();
  std::string bf16, pred, c64, s4;
  for (int i = 0; i < 15; ++i) {
    bf16 += std::string("\x80\x3f", 2);  // 1.0
    pred += static_cast<char>(i % 2);
    c64 += std::string(4, '\0') + std::string("\0\0\x80\x3f", 4);  // 1j
    s4 += static_cast<char>(i % 2 == 0 ? 3 : -2);
  }
  auto outputs = driver_.Run(
      *types, {driver_.Make({ifrt::DType::kBF16, {3, 5}}, bf16), driver_.Make({ifrt::DType::kPred, {3, 5}}, pred),
               driver_.Make({ifrt::DType::kC64, {3, 5}}, c64), driver_.Make({ifrt::DType::kS4, {3, 5}}, s4)});
  ASSERT_TRUE(outputs.ok()) << outputs.status();
  EXPECT_EQ(driver_.Read((*outputs)[0])->substr(0, 2), std::string("\0\x40", 2));
  EXPECT_EQ(driver_.Read((*outputs)[1])->substr(0, 3), std::string("\1\0\1", 3));
  EXPECT_EQ(driver_.Read((*outputs)[2])->substr(4, 4), std::string("\0\0\0\x40", 4));
  const std::vector<float> fours = driver_.ReadFloats((*outputs)[3]);
  ASSERT_EQ(fours.size(), 15);
  EXPECT_EQ(fours[0], 3);
  EXPECT_EQ(fours[1], -2);
}

TEST_F(JaxlibEngineTest, ViewsOfColumnMajorResultsAreRowMajor) {
  auto program = driver_.Load("column_major", {0});
  ASSERT_TRUE(program.ok()) << program.status();
  std::vector<float> values(15), expected(15);
  for (int i = 0; i < 15; ++i) {
    values[i] = i;
    expected[i] = i + 1;
  }
  ArrayRef argument =
      driver_.Make({ifrt::DType::kF32, {3, 5}},
                   std::string(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)));
  auto outputs = driver_.Run(*program, {argument});
  ASSERT_TRUE(outputs.ok()) << outputs.status();
  EXPECT_EQ(driver_.ReadFloats((*outputs)[0]), expected);
}

TEST_F(JaxlibEngineTest, LapackWorks) {
  auto qr = driver_.Load("qr", {0});
  ASSERT_TRUE(qr.ok()) << qr.status();
  std::vector<float> identity(16, 0);
  for (int i = 0; i < 4; ++i) identity[5 * i] = 2;
  ArrayRef argument = driver_.Make({ifrt::DType::kF32, {4, 4}},
                                   std::string(reinterpret_cast<const char*>(identity.data()), 16 * sizeof(float)));
  auto outputs = driver_.Run(*qr, {argument});
  ASSERT_TRUE(outputs.ok()) << outputs.status();
  EXPECT_EQ(std::abs(driver_.ReadFloats((*outputs)[1])[0]), 2);
}

TEST_F(JaxlibEngineTest, RefusesCallbacksBeforeTheyCrash) {
  auto callback = driver_.Load("callback", {0});
  EXPECT_EQ(callback.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(callback.status().message()), HasSubstr("xla_ffi_python_cpu_callback"));
}

TEST_F(JaxlibEngineTest, AFailedRunPoisonsItsOutputsWithXlasWords) {
  auto huge = driver_.Load("huge", {0});
  auto add = driver_.Load("add", {0});
  ASSERT_TRUE(huge.ok() && add.ok()) << huge.status();
  ArrayRef four = driver_.Floats({1, 2, 3, 4});
  auto outputs = driver_.Run(*huge, {four});
  EXPECT_EQ(outputs.status().code(), absl::StatusCode::kResourceExhausted) << outputs.status();
  EXPECT_TRUE(driver_.Run(*add, {four, four}).ok());
}

TEST_F(JaxlibEngineTest, AlignedBytesAreNotCopiedInOrOut) {
  alignas(64) static float values[1024];
  for (int i = 0; i < 1024; ++i) values[i] = i;
  Bytes bytes{reinterpret_cast<const uint8_t*>(values), sizeof(values), nullptr, ""};
  auto array = driver_.engine().MakeArray("", {{0, {ifrt::DType::kF32, {1024}}, bytes}});
  ASSERT_TRUE(array.ok());
  const uint8_t* seen = nullptr;
  driver_.engine().View(*array, 0, [&](absl::StatusOr<Bytes> view) { seen = view->data; });
  EXPECT_EQ(seen, bytes.data);
}

TEST_F(JaxlibEngineTest, BytesAreLetGoWithTheArray) {
  auto owner = std::make_shared<std::string>(4096, 'x');
  Bytes bytes{reinterpret_cast<const uint8_t*>(owner->data()), owner->size(), owner, ""};
  auto array = driver_.engine().MakeArray("", {{0, {ifrt::DType::kU8, {4096}}, bytes}});
  ASSERT_TRUE(array.ok());
  bytes.owner = nullptr;
  *array = nullptr;
  EXPECT_TRUE(driver_.WaitFor([&] { return owner.use_count() == 1; }));
}

TEST_F(JaxlibEngineTest, ALongProgramHoldsUpNoOtherDevice) {
  auto loop = driver_.Load("loop", {0});
  auto other = driver_.Load("add", {1});
  ASSERT_TRUE(loop.ok() && other.ok()) << loop.status();
  const int32_t count = 100'000;
  ArrayRef times = driver_.Make({ifrt::DType::kS32, {}}, std::string(reinterpret_cast<const char*>(&count), 4));
  ArrayRef start = driver_.Floats(std::vector<float>(4096, 1));
  std::atomic<bool> ended{false};
  auto result = driver_.engine().Launch(**loop, {start, times}, {}, [&](absl::Status) { ended = true; });
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_FALSE(ended);
  ArrayRef there = driver_.Floats({1, 2, 3, 4}, {1});
  EXPECT_TRUE(driver_.Run(*other, {there, there}).ok());
  EXPECT_FALSE(ended) << "the others waited for the long program";
  EXPECT_TRUE(driver_.WaitFor([&] { return ended.load(); }));
}

TEST_F(JaxlibEngineTest, LongChainsEndInOrderAndAllAreTold) {
  auto loop = driver_.Load("loop", {0});
  ASSERT_TRUE(loop.ok());
  const int32_t count = 20;
  ArrayRef times = driver_.Make({ifrt::DType::kS32, {}}, std::string(reinterpret_cast<const char*>(&count), 4));
  ArrayRef value = driver_.Floats(std::vector<float>(4096, 1));
  std::atomic<int> ended{0};
  for (int i = 0; i < 300; ++i) {
    auto result =
        driver_.engine().Launch(**loop, {value, times}, {}, [&](absl::Status status) { ended += status.ok(); });
    ASSERT_TRUE(result.ok());
    value = result->outputs[0];
  }
  EXPECT_TRUE(driver_.WaitFor([&] { return ended == 300; }));
}

}  // namespace
}  // namespace parkway::engine
