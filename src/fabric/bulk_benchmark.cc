// 128 MiB from one process to another: mapped from shared memory, and streamed over loopback TCP as between machines.
// The floor beside them is a memcpy into new shared memory.
#include <benchmark/benchmark.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <future>
#include <string>

#include "fabric/bulk.h"
#include "fabric/link.h"

namespace parkway::fabric {
namespace {

constexpr size_t kBytes = 128 << 20;

// A process that offers kBytes.
struct Owner {
  explicit Owner(bool mapped) {
    int fds[2];
    if (pipe(fds) != 0) std::abort();
    pid = fork();
    if (pid == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      Fabric fabric;
      auto bulk = *Bulk::Create(fabric, "127.0.0.1");
      auto blob = *Blob::Create(kBytes);
      std::memset(blob->data(), 1, kBytes);
      Bytes bytes = Blob::Share(blob);
      if (!mapped) bytes.local_path.clear();
      const std::string text = bulk->Offer(bytes).SerializeAsString();
      if (write(fds[1], text.data(), text.size()) < 0) std::abort();
      for (;;) pause();
    }
    char text[1000];
    const ssize_t n = read(fds[0], text, sizeof(text));
    transfer.ParseFromArray(text, static_cast<int>(n));
    close(fds[0]);
    close(fds[1]);
  }
  ~Owner() {
    kill(pid, SIGKILL);
    waitpid(pid, nullptr, 0);
  }
  pid_t pid;
  Transfer transfer;
};

Bytes FetchAndWait(Bulk& bulk, const Transfer& transfer) {
  std::promise<Bytes> got;
  bulk.Fetch(transfer, [&](absl::StatusOr<Bytes> bytes) { got.set_value(*std::move(bytes)); });
  return got.get_future().get();
}

void Fetch(benchmark::State& state) {
  Owner owner(state.range(0) != 0);
  Fabric fabric;
  auto bulk = *Bulk::Create(fabric, "127.0.0.1");
  for (auto _ : state) benchmark::DoNotOptimize(FetchAndWait(*bulk, owner.transfer));
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations() * kBytes));
}

void CopyToSharedMemory(benchmark::State& state) {
  const std::string source(kBytes, 'x');
  for (auto _ : state) std::memcpy((*Blob::Create(kBytes))->data(), source.data(), kBytes);
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations() * kBytes));
}

BENCHMARK(Fetch)->ArgName("mapped")->Arg(0)->Arg(1)->UseRealTime();
BENCHMARK(CopyToSharedMemory)->UseRealTime();

}  // namespace
}  // namespace parkway::fabric

BENCHMARK_MAIN();
