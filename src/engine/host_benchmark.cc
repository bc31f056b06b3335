// What the host itself costs: from an encoded operation to the encoded event, with an engine that computes nothing.
#include <benchmark/benchmark.h>

#include <condition_variable>
#include <mutex>

#include "engine/host_testing.h"

namespace parkway::engine {
namespace {

using namespace testing;  // NOLINT: host_testing.h

const Type kScalar{ifrt::DType::kF32, {}};

struct Bench {
  explicit Bench(int parameters, bool may_block) {
    executor = MakeSerialExecutor();
    engine = SimEngine::Create({.devices = 4, .launch_may_block = may_block}, *executor);
    host = std::make_unique<EngineHost>(HostOptions{.incarnation = 1}, *engine, bulk, threads.threads());
    ProxyHello hello;
    for (int d = 0; d < 4; ++d) hello.add_devices(d);
    (void)host->Start(hello, [this](const fabric::Frame& frame) {
      Events events;
      events.ParseFromString(*frame);
      std::lock_guard<std::mutex> lock(mutex);
      ended += events.done_size() + events.loaded_size();
      wake.notify_one();
    });
    Run(MakePut(1, kScalar, "abcd", {0, 1, 2, 3}), 1);
    Run(MakeLoad(1, "f", {0, 1, 2, 3}, std::vector<Type>(parameters, kScalar), {kScalar}), 1);
  }
  void Run(Op op, int events) {
    op.set_seq(++seq);
    const std::string message = op.SerializeAsString();
    {
      std::lock_guard<std::mutex> lock(mutex);
      expected += events;
    }
    (void)host->OnMessage(message);
    std::unique_lock<std::mutex> lock(mutex);
    wake.wait(lock, [this] { return ended >= expected; });
  }

  std::unique_ptr<Executor> executor;
  ProcessThreads threads;
  std::unique_ptr<SimEngine> engine;
  FakeBulk bulk{std::make_shared<BulkSpace>()};
  std::mutex mutex;
  std::condition_variable wake;
  int64_t ended = 0, expected = 0;
  uint64_t seq = 0;
  std::unique_ptr<EngineHost> host;
};

// One launch after the other, each waited for, each result donated to the next.
void BM_LaunchChain(benchmark::State& state) {
  const auto parameters = static_cast<int>(state.range(0));
  const bool queued = state.range(1) != 0;
  Bench bench(parameters, queued);
  uint64_t array = 1;
  for (auto _ : state) {
    bench.Run(MakeLaunch(1, std::vector<uint64_t>(parameters, array), {array + 1}, 0, {0}), 1);
    ++array;
  }
  const HostStats stats = bench.host->Stats();
  state.counters["inline"] =
      static_cast<double>(stats.launches_inline) / static_cast<double>(stats.launches_inline + stats.launches_queued);
}
// {arguments, whether the engine says that its launches may block: then inline launches have to be earned}
BENCHMARK(BM_LaunchChain)->Args({1, 0})->Args({1, 1})->Args({200, 0})->UseRealTime();

}  // namespace
}  // namespace parkway::engine

BENCHMARK_MAIN();
