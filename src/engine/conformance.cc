#include "engine/conformance.h"

#include <gmock/gmock.h>

#include <atomic>
#include <cstring>
#include <fstream>
#include <iterator>
#include <mutex>
#include <optional>
#include <sstream>
#include <thread>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "base/status.h"

namespace parkway::engine {
namespace {

using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;

absl::StatusOr<std::string> ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return absl::FailedPreconditionError(absl::StrCat("no file ", path));
  return std::string(std::istreambuf_iterator<char>(file), {});
}

std::string BytesOf(const std::vector<float>& values) {
  return std::string(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float));
}

const Type kFour{ifrt::DType::kF32, {4}};

// A value that a callback sets on another thread.
template <typename T>
class Box {
 public:
  void Set(T value) {
    std::lock_guard lock(mutex_);
    ++sets_;
    value_ = std::move(value);
  }
  bool set() const {
    std::lock_guard lock(mutex_);
    return value_.has_value();
  }
  int sets() const {
    std::lock_guard lock(mutex_);
    return sets_;
  }
  T Get() const {
    std::lock_guard lock(mutex_);
    return *value_;
  }

 private:
  mutable std::mutex mutex_;
  int sets_ = 0;
  std::optional<T> value_;
};
template <typename T>
std::shared_ptr<Box<T>> MakeBox() {
  return std::make_shared<Box<T>>();
}

}  // namespace

absl::StatusOr<TestProgram> ReadTestProgram(const std::string& directory, const std::string& name) {
  TestProgram program;
  const std::string path = absl::StrCat(directory, "/", name);
  PARKWAY_ASSIGN_OR_RETURN(program.executable, ReadFile(path + ".executable"));
  PARKWAY_ASSIGN_OR_RETURN(program.compile_options, ReadFile(path + ".options"));
  PARKWAY_ASSIGN_OR_RETURN(std::string types, ReadFile(path + ".types"));
  std::istringstream lines(types);
  std::string kind, dtype, dims;
  while (lines >> kind >> dtype >> dims) {
    Type type;
    PARKWAY_ASSIGN_OR_RETURN(type.dtype, ifrt::ParseDType(dtype));
    if (dims != "-") {
      for (absl::string_view size : absl::StrSplit(dims, ',')) {
        if (!absl::SimpleAtoi(size, &type.dims.emplace_back())) return absl::InvalidArgumentError(path);
      }
    }
    (kind == "in" ? program.parameters : program.outputs).push_back(std::move(type));
  }
  return program;
}

Driver::Driver(const EngineCase& engine_case, int devices) : case_(engine_case) {
  auto engine = case_.make(devices);
  if (!engine.ok()) ADD_FAILURE() << engine.status();
  engine_ = std::move(engine).value();
}

bool Driver::WaitFor(const std::function<bool()>& finished) {
  const absl::Time deadline = absl::Now() + absl::Minutes(1);
  while (!finished()) {
    if (absl::Now() > deadline) return false;
    if (case_.pump) case_.pump();
    absl::SleepFor(absl::Microseconds(100));
  }
  return true;
}

absl::StatusOr<ExecutableRef> Driver::Load(const std::string& name, std::vector<int> local_devices, ContextRef context,
                                           std::vector<int> device_ids) {
  PARKWAY_ASSIGN_OR_RETURN(TestProgram program, case_.program(name));
  LoadSpec spec;
  spec.context = std::move(context);
  spec.name = name;
  spec.program = Bytes::OfString(std::move(program.executable));
  spec.compile_options = std::move(program.compile_options);
  spec.device_ids = device_ids.empty() ? local_devices : std::move(device_ids);
  spec.local_devices = std::move(local_devices);
  spec.parameters = std::move(program.parameters);
  spec.outputs = std::move(program.outputs);
  return engine_->Load(spec);
}

ArrayRef Driver::Make(const Type& type, const std::string& bytes, std::vector<int> devices) {
  std::vector<HostShard> shards;
  for (int device : devices) shards.push_back({device, type, Bytes::OfString(bytes)});
  auto array = engine_->MakeArray("", std::move(shards));
  if (!array.ok()) ADD_FAILURE() << array.status();
  return array.ok() ? *array : nullptr;
}

ArrayRef Driver::Floats(const std::vector<float>& values, std::vector<int> devices) {
  return Make({ifrt::DType::kF32, {static_cast<int64_t>(values.size())}}, BytesOf(values), std::move(devices));
}

absl::StatusOr<std::string> Driver::Read(const ArrayRef& array, int device) {
  auto box = MakeBox<absl::StatusOr<Bytes>>();
  engine_->View(array, device, [box](absl::StatusOr<Bytes> bytes) { box->Set(std::move(bytes)); });
  if (!WaitFor([&] { return box->set(); })) return absl::DeadlineExceededError("no view after a minute");
  auto bytes = box->Get();
  if (!bytes.ok()) return bytes.status();
  return std::string(bytes->view());
}

std::vector<float> Driver::ReadFloats(const ArrayRef& array, int device) {
  auto bytes = Read(array, device);
  if (!bytes.ok()) ADD_FAILURE() << bytes.status();
  std::vector<float> values(bytes.ok() ? bytes->size() / sizeof(float) : 0);
  if (!values.empty()) std::memcpy(values.data(), bytes->data(), bytes->size());
  return values;
}

absl::StatusOr<std::vector<ArrayRef>> Driver::Run(const ExecutableRef& executable,
                                                  const std::vector<ArrayRef>& arguments,
                                                  const std::vector<int>& donated) {
  auto box = MakeBox<absl::Status>();
  PARKWAY_ASSIGN_OR_RETURN(LaunchResult result, engine_->Launch(*executable, arguments, donated,
                                                                [box](absl::Status status) { box->Set(status); }));
  if (!WaitFor([&] { return box->set(); })) return absl::DeadlineExceededError("a launch ran for a minute");
  PARKWAY_RETURN_IF_ERROR(box->Get());
  EXPECT_EQ(box->sets(), 1);
  return result.outputs;
}

namespace {

TEST_P(EngineConformance, SaysWhatItIs) {
  Driver driver(GetParam(), 2);
  const Capabilities& capabilities = driver.engine().capabilities();
  EXPECT_EQ(capabilities.devices, 2);
  EXPECT_FALSE(capabilities.platform.empty());
  EXPECT_FALSE(capabilities.version.empty());
  EXPECT_FALSE(capabilities.memory_kinds.empty());
}

TEST_P(EngineConformance, GivesBackTheBytesThatItGot) {
  Driver driver(GetParam(), 2);
  for (ifrt::DType dtype :
       {ifrt::DType::kPred, ifrt::DType::kS4, ifrt::DType::kU2, ifrt::DType::kS8, ifrt::DType::kU16, ifrt::DType::kBF16,
        ifrt::DType::kF16, ifrt::DType::kF32, ifrt::DType::kS64, ifrt::DType::kC64, ifrt::DType::kC128,
        ifrt::DType::kF8E4M3FN, ifrt::DType::kF8E5M2, ifrt::DType::kF8E8M0FNU, ifrt::DType::kF4E2M1FN}) {
    for (const std::vector<int64_t>& dims : {std::vector<int64_t>{}, {7}, {3, 5}, {0, 4}, {1, 1, 1}}) {
      SCOPED_TRACE(absl::StrCat(std::string(ifrt::Name(dtype)), " of rank ", dims.size()));
      size_t size = ifrt::ByteWidth(dtype);
      for (int64_t d : dims) size *= d;
      std::string bytes(size, '\0');
      for (size_t i = 0; i < size; ++i) bytes[i] = i % 2;
      ArrayRef array = driver.Make({dtype, dims}, bytes, {0, 1});
      ASSERT_NE(array, nullptr);
      EXPECT_EQ(array->type(1), (Type{dtype, dims}));
      EXPECT_THAT(array->devices(), ElementsAre(0, 1));
      for (int device : {0, 1}) {
        auto read = driver.Read(array, device);
        ASSERT_TRUE(read.ok()) << read.status();
        EXPECT_EQ(*read, bytes);
      }
    }
  }
}

TEST_P(EngineConformance, AViewOutlivesArrayAndEngine) {
  Driver driver(GetParam(), 1);
  auto box = MakeBox<absl::StatusOr<Bytes>>();
  ArrayRef array = driver.Floats({1, 2, 3, 4});
  driver.engine().View(array, 0, [box](absl::StatusOr<Bytes> bytes) { box->Set(std::move(bytes)); });
  ASSERT_TRUE(driver.WaitFor([&] { return box->set(); }));
  array.reset();
  driver.Destroy();
  ASSERT_TRUE(box->Get().ok());
  EXPECT_EQ(box->Get()->view(), BytesOf({1, 2, 3, 4}));
}

TEST_P(EngineConformance, EveryMemoryKindHoldsArrays) {
  Driver driver(GetParam(), 1);
  for (const std::string& kind : driver.engine().capabilities().memory_kinds) {
    auto array = driver.engine().MakeArray(kind, {{0, kFour, Bytes::OfString(BytesOf({1, 2, 3, 4}))}});
    ASSERT_TRUE(array.ok()) << array.status();
    EXPECT_THAT(driver.ReadFloats(*array), ElementsAre(1, 2, 3, 4));
  }
  auto unknown = driver.engine().MakeArray("attic", {{0, kFour, Bytes::OfString(BytesOf({1, 2, 3, 4}))}});
  EXPECT_EQ(unknown.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(unknown.status().message()), HasSubstr("attic"));
}

TEST_P(EngineConformance, RefusesArraysThatAreNone) {
  Driver driver(GetParam(), 2);
  const Bytes bytes = Bytes::OfString(BytesOf({1, 2, 3, 4}));
  auto code = [&](std::vector<HostShard> shards) {
    return driver.engine().MakeArray("", std::move(shards)).status().code();
  };
  EXPECT_EQ(code({}), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code({{2, kFour, bytes}}), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code({{-1, kFour, bytes}}), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code({{0, kFour, bytes}, {0, kFour, bytes}}), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code({{0, {ifrt::DType::kF32, {5}}, bytes}}), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code({{0, {ifrt::DType::kF32, {-4}}, bytes}}), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code({{0, {ifrt::DType::kF32, {int64_t{1} << 62, 4}}, bytes}}), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code({{0, {ifrt::DType::kString, {}}, Bytes::OfString("")}}), absl::StatusCode::kInvalidArgument);
}

TEST_P(EngineConformance, RunsAProgramOnEachDevice) {
  Driver driver(GetParam(), 2);
  for (int device : {0, 1}) {
    auto add = driver.Load("add", {device});
    ASSERT_TRUE(add.ok()) << add.status();
    auto outputs = driver.Run(*add, {driver.Floats({1, 2, 3, 4}, {device}), driver.Floats({10, 20, 30, 40}, {device})});
    ASSERT_TRUE(outputs.ok()) << outputs.status();
    ASSERT_EQ(outputs->size(), 2);
    EXPECT_EQ((*outputs)[0]->type(device), kFour);
    EXPECT_THAT((*outputs)[0]->devices(), ElementsAre(device));
    if (!GetParam().computes) continue;
    EXPECT_THAT(driver.ReadFloats((*outputs)[0], device), ElementsAre(11, 22, 33, 44));
    EXPECT_THAT(driver.ReadFloats((*outputs)[1], device), ElementsAre(2, 4, 6, 8));
  }
}

TEST_P(EngineConformance, ResultsAreArguments) {
  Driver driver(GetParam(), 1);
  auto add = driver.Load("add", {0});
  ASSERT_TRUE(add.ok()) << add.status();
  ArrayRef value = driver.Floats({1, 1, 1, 1});
  const ArrayRef one = value;
  for (int i = 0; i < 50; ++i) {
    auto result = driver.engine().Launch(**add, {value, one}, {}, [](absl::Status) {});
    ASSERT_TRUE(result.ok()) << result.status();
    value = result->outputs[0];
  }
  const std::vector<float> values = driver.ReadFloats(value);
  if (GetParam().computes) {
    EXPECT_THAT(values, ElementsAre(51, 51, 51, 51));
  }
}

TEST_P(EngineConformance, RunsOnSeveralDevicesInEitherOrder) {
  Driver driver(GetParam(), 2);
  for (const std::vector<int>& devices : {std::vector<int>{0, 1}, {1, 0}}) {
    auto sum = driver.Load("sum2", devices);
    ASSERT_TRUE(sum.ok()) << sum.status();
    std::vector<HostShard> shards = {{0, kFour, Bytes::OfString(BytesOf({1, 2, 3, 4}))},
                                     {1, kFour, Bytes::OfString(BytesOf({10, 20, 30, 40}))}};
    auto argument = driver.engine().MakeArray("", shards);
    ASSERT_TRUE(argument.ok());
    for (int i = 0; i < 20; ++i) {
      auto outputs = driver.Run(*sum, {*argument});
      ASSERT_TRUE(outputs.ok()) << outputs.status();
      for (int device : {0, 1}) {
        const std::vector<float> values = driver.ReadFloats((*outputs)[0], device);
        if (GetParam().computes) {
          EXPECT_THAT(values, ElementsAre(11, 22, 33, 44));
        }
      }
    }
  }
}

TEST_P(EngineConformance, AssemblesAndTakesApartWithoutCopies) {
  Driver driver(GetParam(), 2);
  auto sum = driver.Load("sum2", {0, 1});
  auto add = driver.Load("add", {1});
  ASSERT_TRUE(sum.ok() && add.ok());
  ArrayRef left = driver.Floats({1, 2, 3, 4}, {0});
  ArrayRef right = driver.Floats({10, 20, 30, 40}, {1});
  auto both = driver.engine().Assemble({{left, 0}, {right, 1}});
  ASSERT_TRUE(both.ok()) << both.status();
  EXPECT_THAT((*both)->devices(), ElementsAre(0, 1));
  auto outputs = driver.Run(*sum, {*both});
  ASSERT_TRUE(outputs.ok()) << outputs.status();
  auto piece = driver.engine().Assemble({{(*outputs)[0], 1}});
  ASSERT_TRUE(piece.ok()) << piece.status();
  auto added = driver.Run(*add, {*piece, right});
  ASSERT_TRUE(added.ok()) << added.status();
  if (GetParam().computes) {
    EXPECT_THAT(driver.ReadFloats((*added)[0], 1), ElementsAre(21, 42, 63, 84));
  }
  EXPECT_EQ(driver.engine().Assemble({{left, 1}}).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(driver.engine().Assemble({}).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_P(EngineConformance, ZerosAreZeroAndArguments) {
  Driver driver(GetParam(), 2);
  const int devices[] = {0, 1};
  auto zeros = driver.engine().Zeros(devices, kFour);
  ASSERT_TRUE(zeros.ok()) << zeros.status();
  EXPECT_THAT(driver.ReadFloats(*zeros, 1), Each(0));
  auto mixed = driver.engine().Assemble({{driver.Floats({1, 2, 3, 4}), 0}, {*zeros, 1}});
  auto sum = driver.Load("sum2", {0, 1});
  ASSERT_TRUE(mixed.ok() && sum.ok());
  auto outputs = driver.Run(*sum, {*mixed});
  ASSERT_TRUE(outputs.ok()) << outputs.status();
  if (GetParam().computes) {
    EXPECT_THAT(driver.ReadFloats((*outputs)[0], 1), ElementsAre(1, 2, 3, 4));
  }
}

TEST_P(EngineConformance, RefusesArgumentsThatDontFit) {
  Driver driver(GetParam(), 2);
  auto add = driver.Load("add", {0});
  ASSERT_TRUE(add.ok());
  ArrayRef good = driver.Floats({1, 2, 3, 4});
  for (const std::vector<ArrayRef>& arguments :
       {std::vector<ArrayRef>{good},
        {good, good, good},
        {good, driver.Floats({1, 2, 3})},
        {good, driver.Floats({1, 2, 3, 4}, {1})},
        {good, driver.Make({ifrt::DType::kS32, {4}}, BytesOf({1, 2, 3, 4}))}}) {
    auto refused = driver.engine().Launch(**add, arguments, {}, [](absl::Status) { ADD_FAILURE() << "a callback"; });
    EXPECT_EQ(refused.status().code(), absl::StatusCode::kInvalidArgument) << refused.status();
    EXPECT_THAT(std::string(refused.status().message()), HasSubstr("add"));
  }
  EXPECT_TRUE(driver.Run(*add, {good, good}).ok());
}

TEST_P(EngineConformance, DonationTakesTheArgumentAlone) {
  Driver driver(GetParam(), 1);
  auto donate = driver.Load("donate", {0});
  ASSERT_TRUE(donate.ok()) << donate.status();
  ArrayRef given = driver.Floats({1, 2, 3, 4});
  ArrayRef kept = driver.Floats({10, 20, 30, 40});
  auto outputs = driver.Run(*donate, {given, kept}, {0});
  ASSERT_TRUE(outputs.ok()) << outputs.status();
  if (GetParam().computes) {
    EXPECT_THAT(driver.ReadFloats((*outputs)[0]), ElementsAre(11, 22, 33, 44));
  }
  EXPECT_EQ(driver.Read(given).status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(driver.ReadFloats(kept), ElementsAre(10, 20, 30, 40));
  auto again = driver.engine().Launch(**donate, {given, kept}, {0}, [](absl::Status) {});
  EXPECT_EQ(again.status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST_P(EngineConformance, WhatIsNotDonatedSurvivesAProgramThatReusesIt) {
  Driver driver(GetParam(), 1);
  auto donate = driver.Load("donate", {0});
  auto add = driver.Load("add", {0});
  ASSERT_TRUE(donate.ok() && add.ok());
  ArrayRef input = driver.Floats({1, 2, 3, 4});
  auto made = driver.Run(*add, {input, input});  // XLA's own memory
  ASSERT_TRUE(made.ok());
  ArrayRef kept = (*made)[0];
  const std::string before = *driver.Read(kept);
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(driver.Run(*donate, {kept, input}).ok());
  EXPECT_EQ(*driver.Read(kept), before);
  auto shared = driver.engine().Assemble({{kept, 0}});
  ASSERT_TRUE(shared.ok());
  ASSERT_TRUE(driver.Run(*donate, {*shared, input}, {0}).ok());
  EXPECT_EQ(*driver.Read(kept), before);
  EXPECT_FALSE(driver.Read(*shared).ok());
}

TEST_P(EngineConformance, AViewBeforeADonationShowsTheOldValue) {
  Driver driver(GetParam(), 1);
  auto increment = driver.Load("increment", {0});
  ASSERT_TRUE(increment.ok()) << increment.status();
  ArrayRef value = driver.Floats(std::vector<float>(65536, 0));
  std::vector<std::shared_ptr<Box<absl::StatusOr<Bytes>>>> views;
  for (int i = 0; i < 50; ++i) {
    auto box = views.emplace_back(MakeBox<absl::StatusOr<Bytes>>());
    driver.engine().View(value, 0, [box](absl::StatusOr<Bytes> bytes) { box->Set(std::move(bytes)); });
    const int donated[] = {0};
    auto result = driver.engine().Launch(**increment, {value}, donated, [](absl::Status) {});
    ASSERT_TRUE(result.ok()) << result.status();
    value = result->outputs[0];
  }
  for (size_t i = 0; i < views.size(); ++i) {
    ASSERT_TRUE(driver.WaitFor([&] { return views[i]->set(); }));
    ASSERT_TRUE(views[i]->Get().ok()) << views[i]->Get().status();
    if (!GetParam().computes) continue;
    float first = 0;
    std::memcpy(&first, views[i]->Get()->data, sizeof(first));
    EXPECT_EQ(first, i);
  }
}

TEST_P(EngineConformance, DonationChainsRunWithoutWaiting) {
  Driver driver(GetParam(), 1);
  auto increment = driver.Load("increment", {0});
  ASSERT_TRUE(increment.ok());
  ArrayRef value = driver.Floats(std::vector<float>(65536, 0));
  auto ended = std::make_shared<std::atomic<int>>(0);
  for (int i = 0; i < 200; ++i) {
    const int donated[] = {0};
    auto result = driver.engine().Launch(**increment, {value}, donated, [ended](absl::Status status) {
      EXPECT_TRUE(status.ok()) << status;
      ++*ended;
    });
    ASSERT_TRUE(result.ok()) << result.status();
    value = result->outputs[0];
  }
  EXPECT_TRUE(driver.WaitFor([&] { return *ended == 200; }));
  const std::vector<float> values = driver.ReadFloats(value);
  if (GetParam().computes) {
    EXPECT_THAT(values, Each(200));
  }
}

TEST_P(EngineConformance, AnEmptyResultEndsToo) {
  Driver driver(GetParam(), 1);
  auto nothing = driver.Load("nothing", {0});
  ASSERT_TRUE(nothing.ok()) << nothing.status();
  auto outputs = driver.Run(*nothing, {driver.Floats({1, 2, 3, 4})});
  ASSERT_TRUE(outputs.ok()) << outputs.status();
  EXPECT_TRUE(outputs->empty());
}

TEST_P(EngineConformance, RefusesGarbageAsAProgram) {
  Driver driver(GetParam(), 1);
  auto program = GetParam().program("add");
  ASSERT_TRUE(program.ok());
  LoadSpec spec;
  spec.name = "garbage";
  spec.program = Bytes::OfString("this is no program");
  spec.compile_options = program->compile_options;
  spec.device_ids = spec.local_devices = {0};
  if (GetParam().computes) {
    EXPECT_FALSE(driver.engine().Load(spec).ok());
  }
  spec.program = Bytes::OfString(program->executable);
  spec.local_devices = {7};
  EXPECT_EQ(driver.engine().Load(spec).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_P(EngineConformance, WhenReadyFiresOnceForPutsAndResults) {
  Driver driver(GetParam(), 1);
  auto add = driver.Load("add", {0});
  ASSERT_TRUE(add.ok());
  ArrayRef put = driver.Floats({1, 2, 3, 4});
  auto outputs = driver.Run(*add, {put, put});
  ASSERT_TRUE(outputs.ok());
  for (const ArrayRef& array : {put, (*outputs)[0]}) {
    auto box = MakeBox<absl::Status>();
    driver.engine().WhenReady(array, [box](absl::Status status) { box->Set(status); });
    ASSERT_TRUE(driver.WaitFor([&] { return box->set(); }));
    EXPECT_TRUE(box->Get().ok());
    EXPECT_EQ(box->sets(), 1);
  }
}

TEST_P(EngineConformance, ManyThreadsAtOnce) {
  Driver driver(GetParam(), 4);
  if (GetParam().pump) GTEST_SKIP() << "a simulated engine has one thread";
  std::vector<std::thread> threads;
  for (int device = 0; device < 4; ++device) {
    threads.emplace_back([&, device] {
      auto add = driver.Load("add", {device});
      ASSERT_TRUE(add.ok()) << add.status();
      for (int i = 0; i < 100; ++i) {
        const float x = i;
        ArrayRef a = driver.Floats({x, x, x, x}, {device});
        ASSERT_TRUE(driver.engine().Zeros({device}, kFour).ok());
        EXPECT_THAT(driver.ReadFloats(a, device), Each(x));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace parkway::engine
