#include "engine/role.h"

#include <glog/logging.h>
#include <stdlib.h>
#include <unistd.h>

#include <condition_variable>
#include <mutex>
#include <nlohmann/json.hpp>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "base/limits.h"
#include "base/liveness.h"
#include "base/machine.h"
#include "base/random.h"
#include "base/status.h"
#include "engine/host.h"
#include "engine/host_door.h"
#include "engine/host_runner.h"
#include "engine/jaxlib/jaxlib_engine.h"
#include "engine/sim/sim_engine.h"
#include "fabric/bulk.h"
#include "fabric/link.h"

namespace parkway::engine {
namespace {

constexpr char kTokenVariable[] = "PARKWAY_ENGINE_TOKEN";

// How many of the process's engines still have, or wait for, their proxy.
class Serving {
 public:
  explicit Serving(int engines) : left_(engines) {}
  void OneIsOver() {
    std::lock_guard<std::mutex> lock(mutex_);
    --left_;
    changed_.notify_all();
  }
  // False when some are still served after `at_most`.
  bool Wait(absl::Duration at_most) {
    std::unique_lock<std::mutex> lock(mutex_);
    return changed_.wait_for(lock, absl::ToChronoNanoseconds(at_most), [this] { return left_ == 0; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int left_;
};

absl::StatusOr<std::string> TakeToken() {
  const char* text = getenv(kTokenVariable);
  if (text == nullptr || *text == '\0') {
    return absl::FailedPreconditionError(
        absl::StrCat("the environment variable ", kTokenVariable, " isn't set; engines are started by workers"));
  }
  const std::string hex = text;
  unsetenv(kTokenVariable);  // not for children
  if (hex.size() % 2 != 0 || hex.find_first_not_of("0123456789abcdefABCDEF") != std::string::npos) {
    return absl::InvalidArgumentError(absl::StrCat(kTokenVariable, " isn't hexadecimal"));
  }
  return absl::HexStringToBytes(hex);
}

// One engine and all that stands in front of it.
struct Served {
  std::unique_ptr<Executor> clock;
  std::unique_ptr<Arena> arena;
  std::unique_ptr<Engine> engine;
  std::unique_ptr<fabric::Bulk> bulk;
  std::unique_ptr<EngineHost> host;
  std::unique_ptr<HostDoor> door;
  std::unique_ptr<fabric::Fabric::Listener> tcp, local;
  std::string unix_path;
  nlohmann::json ready;
};

absl::StatusOr<std::unique_ptr<Served>> Serve(const EngineOptions& options, const std::string& token,
                                              fabric::Fabric& fabric, const HostThreads& threads, Serving& serving) {
  auto served = std::make_unique<Served>();
  served->clock = MakeSerialExecutor();
  PARKWAY_ASSIGN_OR_RETURN(served->engine, MakeEngine(options, *served->clock));
  PARKWAY_ASSIGN_OR_RETURN(served->bulk, fabric::Bulk::Create(fabric, options.host));
  const uint64_t incarnation = RandomUint64();
  if (options.arena_fd >= 0) served->arena = ConnectArena(Descriptor(options.arena_fd));
  served->host = std::make_unique<EngineHost>(HostOptions{.incarnation = incarnation,
                                                          .machine = MachineIdentity(),
                                                          .memory_bytes = options.memory_bytes,
                                                          .arena = served->arena.get()},
                                              *served->engine, *served->bulk, threads);
  // Many engines in one process share the fabric's thread: a thread for each would only change places with the others.
  served->door = std::make_unique<HostDoor>(
      *served->host, *threads.clock,
      HostDoor::Options{.token = token, .own_threads = options.sim_engines == 1, .lost = [&](const absl::Status& why) {
                          LOG(INFO) << "The proxy is gone: " << why.message();
                          serving.OneIsOver();
                        }});
  auto accept = [door = served->door.get()](const std::string& peer) { return door->Accept(peer); };
  PARKWAY_ASSIGN_OR_RETURN(served->tcp, fabric.Listen(absl::StrCat(options.host, ":0"), accept));
  if (!options.unix_dir.empty()) {
    served->unix_path = absl::StrCat(options.unix_dir, "/engine-", absl::StrFormat("%016x", incarnation), ".sock");
    PARKWAY_ASSIGN_OR_RETURN(served->local, fabric.Listen(absl::StrCat("unix:", served->unix_path), accept));
  }
  served->ready = {{"incarnation", incarnation},
                   {"address", served->tcp->address()},
                   {"unix_path", served->unix_path},
                   {"machine", MachineIdentity()},
                   {"pid", getpid()}};
  return served;
}

absl::Status WriteLine(int fd, const std::string& line) {
  for (size_t written = 0; written < line.size();) {
    const ssize_t n = write(fd, line.data() + written, line.size() - written);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return absl::FailedPreconditionError(absl::StrCat("can't write to descriptor ", fd));
    written += static_cast<size_t>(n);
  }
  return absl::OkStatus();
}

absl::Status Run(const EngineOptions& options) {
  PARKWAY_ASSIGN_OR_RETURN(const std::string token, TakeToken());
  if (options.sim_engines < 1 || (options.sim_engines > 1 && options.engine != "sim")) {
    return absl::InvalidArgumentError("several engines in one process are possible with --engine=sim alone");
  }
  RaiseOpenFileLimit();
  StartLiveness();
  // Never destroyed: the process ends while its threads are where they are, perhaps in a program that doesn't end.
  auto* fabric = new fabric::Fabric();
  auto* threads = new ProcessThreads();
  auto* serving = new Serving(options.sim_engines);
  auto* all = new std::vector<std::unique_ptr<Served>>();
  for (int i = 0; i < options.sim_engines; ++i) {
    PARKWAY_ASSIGN_OR_RETURN(std::unique_ptr<Served> served,
                             Serve(options, token, *fabric, threads->threads(), *serving));
    all->push_back(std::move(served));
  }
  for (const auto& served : *all) PARKWAY_RETURN_IF_ERROR(WriteLine(options.ready_fd, served->ready.dump() + "\n"));
  if (options.ready_fd > 2) close(options.ready_fd);
  while (!serving->Wait(limits::kEngineUnclaimed)) {
    const bool claimed =
        std::any_of(all->begin(), all->end(), [](const auto& served) { return served->door->claimed(); });
    if (!claimed) LOG(ERROR) << "No proxy has come for this engine in " << limits::kEngineUnclaimed << "; it ends.";
    if (!claimed) break;
  }
  for (const auto& served : *all) {
    if (!served->unix_path.empty()) unlink(served->unix_path.c_str());
  }
  google::FlushLogFiles(google::INFO);
  _exit(0);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Engine>> MakeEngine(const EngineOptions& options, Executor& clock) {
  if (options.devices < 1) return absl::InvalidArgumentError("an engine needs one device or more");
  if (options.engine == "sim") return SimEngine::Create({.devices = options.devices}, clock);
  if (options.engine == "jaxlib") return MakeJaxlibEngine({.devices = options.devices, .bind_host = options.host});
  return absl::InvalidArgumentError(absl::StrCat("--engine takes jaxlib or sim, not '", options.engine, "'"));
}

int RunEngineRole(const EngineOptions& options) {
  const absl::Status status = Run(options);
  LOG(ERROR) << "The engine can't start: " << status.message();
  return absl::IsInvalidArgument(status) ? 2 : 1;
}

}  // namespace parkway::engine
