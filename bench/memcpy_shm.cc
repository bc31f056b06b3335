// How fast this machine copies into fresh shared memory: what a copy of an array between two processes can't beat.
// Prints one line of JSON; rate in GB/s, the median of the repetitions, each into a block whose pages nobody touched.
#include <sys/mman.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <vector>

namespace {

// Seconds for one copy; negative when there is no memory for it.
double CopyOnce(const std::vector<char>& from) {
  const int fd = memfd_create("memcpy_shm", MFD_CLOEXEC);
  if (fd < 0 || ftruncate(fd, static_cast<off_t>(from.size())) != 0) return -1;
  void* to = mmap(nullptr, from.size(), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  close(fd);
  if (to == MAP_FAILED) return -1;
  const auto start = std::chrono::steady_clock::now();
  std::memcpy(to, from.data(), from.size());
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  munmap(to, from.size());
  return took.count();
}

}  // namespace

int main(int argc, char** argv) {
  size_t bytes = size_t{128} << 20;
  int repetitions = 3;
  CLI::App app{"Rate of a memcpy into fresh shared memory"};
  app.add_option("--bytes", bytes, "of each copy")->check(CLI::PositiveNumber);
  app.add_option("--repetitions", repetitions)->check(CLI::PositiveNumber);
  CLI11_PARSE(app, argc, argv);
  const std::vector<char> from(bytes, 1);
  std::vector<double> seconds;
  for (int i = 0; i < repetitions; ++i) {
    seconds.push_back(CopyOnce(from));
    if (seconds.back() < 0) {
      std::fprintf(stderr, "memcpy_shm: no shared memory for %zu bytes\n", bytes);
      return 1;
    }
  }
  std::sort(seconds.begin(), seconds.end());
  const double median = seconds[seconds.size() / 2];
  std::printf("{\"rate\": %.4f, \"seconds\": %.6f}\n", static_cast<double>(bytes) / median / 1e9, median);
  return 0;
}
