// What one launch costs in the jaxlib engine, apart from what the program computes.
#include <benchmark/benchmark.h>
#include <stdlib.h>

#include <thread>

#include "absl/synchronization/notification.h"
#include "engine/conformance.h"
#include "engine/jaxlib/jaxlib_engine.h"

namespace parkway::engine {
namespace {

EngineCase JaxlibCase() {
  EngineCase engine;
  engine.make = [](int devices) { return MakeJaxlibEngine({.devices = devices}); };
  engine.program = [](const std::string& name) { return ReadTestProgram(getenv("PARKWAY_TEST_PROGRAMS"), name); };
  return engine;
}

struct Fixture {
  EngineCase engine_case = JaxlibCase();
  Driver driver{engine_case, 2};
  ExecutableRef Load(const std::string& name, std::vector<int> devices) {
    return driver.Load(name, std::move(devices)).value();
  }
};
Fixture& Shared() {
  static auto* fixture = new Fixture();
  return *fixture;
}

void LaunchAndWait(benchmark::State& state, const std::string& program, std::vector<int> devices,
                   const std::vector<ArrayRef>& arguments) {
  Fixture& fixture = Shared();
  ExecutableRef executable = fixture.Load(program, std::move(devices));
  for (auto _ : state) {
    absl::Notification ended;
    auto result = fixture.driver.engine().Launch(*executable, arguments, {}, [&](absl::Status) { ended.Notify(); });
    if (!result.ok()) return state.SkipWithError(std::string(result.status().message()).c_str());
    ended.WaitForNotification();
  }
}

void BM_LaunchTiny(benchmark::State& state) {
  ArrayRef four = Shared().driver.Floats({1, 2, 3, 4});
  LaunchAndWait(state, "add", {0}, {four, four});
}
BENCHMARK(BM_LaunchTiny);

// On a thread that Python didn't start on, as in an engine.
void BM_LaunchTinyElsewhere(benchmark::State& state) {
  std::thread([&] { BM_LaunchTiny(state); }).join();
}
BENCHMARK(BM_LaunchTinyElsewhere)->MeasureProcessCPUTime();

void BM_LaunchTwoDevices(benchmark::State& state) {
  LaunchAndWait(state, "sum2", {0, 1}, {Shared().driver.Floats({1, 2, 3, 4}, {0, 1})});
}
BENCHMARK(BM_LaunchTwoDevices);

// A chain of a program that is too big to run inside the call, donating.
void BM_LaunchChain(benchmark::State& state) {
  Fixture& fixture = Shared();
  ExecutableRef increment = fixture.Load("increment", {0});
  ArrayRef value = fixture.driver.Floats(std::vector<float>(65536, 0));
  const int donated[] = {0};
  for (auto _ : state) {
    auto result = fixture.driver.engine().Launch(*increment, {value}, donated, [](absl::Status) {});
    value = result->outputs[0];
  }
  benchmark::DoNotOptimize(fixture.driver.Read(value));
}
BENCHMARK(BM_LaunchChain);

void BM_Put(benchmark::State& state) {
  alignas(64) static float values[1024];
  const Bytes bytes{reinterpret_cast<const uint8_t*>(values), sizeof(values), nullptr, ""};
  for (auto _ : state) {
    benchmark::DoNotOptimize(Shared().driver.engine().MakeArray("", {{0, {ifrt::DType::kF32, {1024}}, bytes}}));
  }
}
BENCHMARK(BM_Put);

void BM_View(benchmark::State& state) {
  ArrayRef four = Shared().driver.Floats({1, 2, 3, 4});
  for (auto _ : state) {
    Shared().driver.engine().View(four, 0, [](absl::StatusOr<Bytes> bytes) { benchmark::DoNotOptimize(bytes); });
  }
}
BENCHMARK(BM_View);

}  // namespace
}  // namespace parkway::engine

BENCHMARK_MAIN();
