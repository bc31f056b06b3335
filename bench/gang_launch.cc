// How long one launch takes over very many hosts: the core of a proxy, its real links, and engines without arithmetic
// in a few processes of this machine (`parkway engine --engine=sim`). No client. Prints one line of JSON:
//   launch_ms     one launch alone, from the request until the last engine has had it and said so (median)
//   pipelined_ms  a chain of launches, per launch
// The first takes in the way back as well, so it is more than until the last engine has the program.
#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "base/executor.h"
#include "base/log.h"
#include "base/machine.h"
#include "base/random.h"
#include "base/status.h"
#include "base/subprocess.h"
#include "fabric/bulk.h"
#include "fabric/link.h"
#include "proto/ifrt/xla_data.pb.h"
#include "proto/parkway/manager.pb.h"
#include "proxy/lease_hosts.h"
#include "runtime/core.h"

namespace parkway::bench {
namespace {

using Clock = std::chrono::steady_clock;
constexpr absl::Duration kStartWait = absl::Seconds(60);
constexpr int kReadyFd = 3;

struct Options {
  std::string parkway = "parkway";
  int processes = 8, hosts = 256, devices = 4;
  int launches = 200;
  bool unix_sockets = false;
};

double MillisecondsSince(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

// Processes of engines, and where each engine listens.
class Engines {
 public:
  absl::Status Start(const Options& options, const std::string& token, const std::string& unix_dir) {
    const int each = options.hosts / options.processes;
    for (int i = 0; i < options.processes; ++i) {
      int ends[2];
      if (pipe2(ends, O_CLOEXEC) != 0) return absl::UnavailableError("no pipe");
      Subprocess::Options process;
      process.argv = {options.parkway,
                      "engine",
                      "--engine=sim",
                      absl::StrCat("--devices=", options.devices),
                      absl::StrCat("--sim_engines=", each),
                      "--host=127.0.0.1",
                      absl::StrCat("--ready_fd=", kReadyFd)};
      if (!unix_dir.empty()) process.argv.push_back(absl::StrCat("--unix_dir=", unix_dir));
      process.env = {{"PARKWAY_ENGINE_TOKEN", absl::BytesToHexString(token)}};
      process.fds = {{ends[1], kReadyFd}};
      PARKWAY_ASSIGN_OR_RETURN(processes_.emplace_back(), Subprocess::Start(std::move(process)));
      close(ends[1]);
      const absl::Status read = ReadEndpoints(ends[0], each);
      close(ends[0]);
      PARKWAY_RETURN_IF_ERROR(read);
    }
    return absl::OkStatus();
  }

  Placement Place(const Options& options, const std::string& token) const {
    Placement placement;
    placement.set_lease(1);
    placement.set_token(token);
    PlacedSlice* slice = placement.add_slices();
    slice->set_slice("sim");
    for (const EngineEndpoint& endpoint : endpoints_) {
      PlacedHost* host = slice->add_hosts();
      host->set_worker(absl::StrCat("host-", slice->hosts_size()));
      host->set_up(true);
      *host->mutable_engine() = endpoint;
    }
    return placement;
  }

 private:
  absl::Status ReadEndpoints(int fd, int count) {
    std::string text;
    const absl::Time deadline = absl::Now() + kStartWait;
    while (std::count(text.begin(), text.end(), '\n') < count) {
      pollfd ready = {fd, POLLIN, 0};
      const int left = static_cast<int>(absl::ToInt64Milliseconds(deadline - absl::Now()));
      char buffer[1 << 16];
      const ssize_t n = left > 0 && poll(&ready, 1, left) == 1 ? read(fd, buffer, sizeof(buffer)) : 0;
      if (n <= 0) return absl::UnavailableError("an engine process did not start; its log is on stderr");
      text.append(buffer, static_cast<size_t>(n));
    }
    for (absl::string_view line : absl::StrSplit(text, '\n', absl::SkipEmpty())) {
      const nlohmann::json json = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
      if (!json.is_object()) return absl::UnavailableError(absl::StrCat("an engine process said: ", line));
      EngineEndpoint& endpoint = endpoints_.emplace_back();
      endpoint.set_incarnation(json.value("incarnation", uint64_t{0}));
      endpoint.set_address(json.value("address", ""));
      endpoint.set_unix_path(json.value("unix_path", ""));
      endpoint.set_machine(json.value("machine", ""));
    }
    return absl::OkStatus();
  }

  std::vector<std::unique_ptr<Subprocess>> processes_;
  std::vector<EngineEndpoint> endpoints_;
};

// Programs over all devices: the one named "start" takes nothing, all others one array; each makes one array.
class GangCompiler : public runtime::Compiler {
 public:
  void Compile(uint64_t, CompileJob job, absl::AnyInvocable<void(absl::StatusOr<CompiledProgram>)> done) override {
    const int devices = job.num_devices();
    xla::OpSharding sharding;
    sharding.set_type(xla::OpSharding::OTHER);
    sharding.add_tile_assignment_dimensions(devices);
    sharding.add_iota_reshape_dims(devices);
    sharding.add_iota_transpose_perm(0);
    CompiledProgram program;
    program.set_name(job.program());
    program.set_executable(job.program());
    program.set_fingerprint(job.program());
    program.set_spans_collectives(true);
    AddType(program.mutable_outputs(), devices);
    AddType(program.mutable_output_shards(), 1);
    program.add_output_shardings(sharding.SerializeAsString());
    if (job.program() != "start") {
      AddType(program.mutable_parameters(), devices);
      AddType(program.mutable_parameter_shards(), 1);
      program.add_parameter_shardings(sharding.SerializeAsString());
    }
    done(std::move(program));
  }
  void Cancel(uint64_t) override {}  // a compile ends before it can be cancelled

 private:
  static void AddType(google::protobuf::RepeatedPtrField<TypeProto>* types, int size) {
    TypeProto* type = types->Add();
    type->set_dtype(static_cast<int>(ifrt::DType::kF32));
    type->add_dims(size);
  }
};

class BulkTransfers : public runtime::Transfers {
 public:
  explicit BulkTransfers(fabric::Bulk* bulk) : bulk_(bulk) {}
  Transfer Offer(Bytes bytes) override { return bulk_->Offer(std::move(bytes)); }
  void Drop(uint64_t id) override { bulk_->Drop(id); }
  void Fetch(const Transfer& transfer, absl::AnyInvocable<void(absl::StatusOr<Bytes>)> done) override {
    bulk_->Fetch(transfer, std::move(done));
  }

 private:
  fabric::Bulk* bulk_;
};

// A core with one session whose engines are those of a placement.
class Gang {
 public:
  Gang(const Options& options, fabric::Fabric& fabric, fabric::Bulk* bulk) : transfers_(bulk) {
    Run([&] {
      runtime::CoreOptions core;
      core.executor = executor_.get();
      core.compiler = &compiler_;
      core.transfers = &transfers_;
      core.topology = runtime::Topology({{"sim", options.hosts, options.devices}});
      core.random = RandomUint64;
      core.restart_engine = [](int, uint64_t, const std::string&) {};
      core_ = runtime::Core::Create(std::move(core));
      hosts_ = std::make_unique<proxy::LeaseHosts>(proxy::LeaseHosts::Options{
          .executor = executor_.get(),
          .core = core_.get(),
          .connect = [&fabric](const std::string& address, fabric::LinkHandlers handlers, auto done) {
            fabric.Connect(address, std::move(handlers), std::move(done));
          }});
      session_ = core_->OpenSession("gang_launch");
    });
  }
  ~Gang() {
    Run([&] {
      session_.reset();
      hosts_.reset();
      core_.reset();
    });
  }

  void Connect(const Placement& placement) {
    Run([&] { hosts_->OnPlacement(placement); });
  }

  absl::StatusOr<runtime::Handle> Compile(const std::string& name) {
    std::vector<int> devices(core_->topology().devices().size());
    for (size_t i = 0; i < devices.size(); ++i) devices[i] = static_cast<int>(i);
    absl::StatusOr<runtime::Handle> executable = 0;
    absl::Notification compiled;
    Run([&] {
      session_->Compile({.program = name, .compile_options = "", .devices = devices},
                        [&](absl::StatusOr<runtime::CompileReply> reply) {
                          executable = reply.ok() ? absl::StatusOr<runtime::Handle>(reply->executable) : reply.status();
                          compiled.Notify();
                        });
    });
    compiled.WaitForNotification();
    return executable;
  }

  // Launches `count` times, each with the result of the one before (`value` first), and waits for the last result,
  // which `value` then names.
  absl::Status Launch(runtime::Handle executable, int count, runtime::Handle* value) {
    absl::Status end;
    absl::Notification ended;
    executor_->Post([&] {
      for (int i = 0; i < count && end.ok(); ++i) end = LaunchOnce(executable, value);
      if (!end.ok()) return ended.Notify();
      session_->WhenReady({*value}, [&](absl::Status status) {
        end = std::move(status);
        ended.Notify();
      });
    });
    if (!ended.WaitForNotificationWithTimeout(kStartWait)) {
      std::fprintf(stderr, "gang_launch: a launch did not end within %s\n", absl::FormatDuration(kStartWait).c_str());
      std::_Exit(1);  // the task above still refers to this frame
    }
    return end;
  }

 private:
  absl::Status LaunchOnce(runtime::Handle executable, runtime::Handle* value) {
    const std::vector<runtime::Handle> arguments(*value == 0 ? 0 : 1, *value);
    const runtime::Handle result = ++last_handle_;
    const std::vector<runtime::Handle> results = {result};
    PARKWAY_RETURN_IF_ERROR(
        session_->Execute({.executable = executable, .arguments = arguments, .results = results}).status());
    if (*value != 0) session_->Destruct(arguments);
    *value = result;
    return absl::OkStatus();
  }
  void Run(absl::AnyInvocable<void()> task) {
    absl::Notification done;
    executor_->Post([&] {
      task();
      done.Notify();
    });
    done.WaitForNotification();
  }

  std::unique_ptr<Executor> executor_ = MakeSerialExecutor();
  GangCompiler compiler_;
  BulkTransfers transfers_;
  std::unique_ptr<runtime::Core> core_;        // in tasks
  std::unique_ptr<proxy::LeaseHosts> hosts_;   // in tasks
  std::unique_ptr<runtime::Session> session_;  // in tasks
  runtime::Handle last_handle_ = 0;            // in tasks
};

absl::Status Measure(const Options& options, const std::string& unix_dir) {
  const std::string token = absl::BytesToHexString(RandomBytes(16));
  Engines engines;
  PARKWAY_RETURN_IF_ERROR(engines.Start(options, token, unix_dir));
  fabric::Fabric fabric;
  PARKWAY_ASSIGN_OR_RETURN(std::unique_ptr<fabric::Bulk> bulk, fabric::Bulk::Create(fabric, "127.0.0.1"));
  Gang gang(options, fabric, bulk.get());
  const auto start = Clock::now();
  gang.Connect(engines.Place(options, token));
  runtime::Handle value = 0;
  PARKWAY_ASSIGN_OR_RETURN(const runtime::Handle make, gang.Compile("start"));
  PARKWAY_RETURN_IF_ERROR(gang.Launch(make, 1, &value));
  const double first_ms = MillisecondsSince(start);
  PARKWAY_ASSIGN_OR_RETURN(const runtime::Handle step, gang.Compile("step"));
  PARKWAY_RETURN_IF_ERROR(gang.Launch(step, 20, &value));  // loads it, warms up
  std::vector<double> alone;
  for (int i = 0; i < options.launches; ++i) {
    const auto launched = Clock::now();
    PARKWAY_RETURN_IF_ERROR(gang.Launch(step, 1, &value));
    alone.push_back(MillisecondsSince(launched));
  }
  const auto chained = Clock::now();
  PARKWAY_RETURN_IF_ERROR(gang.Launch(step, options.launches, &value));
  const double pipelined = MillisecondsSince(chained) / options.launches;
  std::sort(alone.begin(), alone.end());
  std::printf("{\"launch_ms\": %.3f, \"launch_p99_ms\": %.3f, \"pipelined_ms\": %.3f, \"first_ms\": %.1f}\n",
              alone[alone.size() / 2], alone[alone.size() * 99 / 100], pipelined, first_ms);
  return absl::OkStatus();
}

int Main(const Options& options) {
  if (options.hosts % options.processes != 0) {
    std::fprintf(stderr, "gang_launch: --hosts is no multiple of --processes\n");
    return 2;
  }
  InitLogging("gang_launch");
  RaiseOpenFileLimit();
  char directory[] = "/tmp/gang_launch.XXXXXX";
  if (options.unix_sockets && mkdtemp(directory) == nullptr) return 1;
  const absl::Status status = Measure(options, options.unix_sockets ? directory : "");
  if (options.unix_sockets) std::filesystem::remove_all(directory);
  if (!status.ok()) std::fprintf(stderr, "gang_launch: %s\n", std::string(status.message()).c_str());
  return status.ok() ? 0 : 1;
}

}  // namespace
}  // namespace parkway::bench

int main(int argc, char** argv) {
  parkway::bench::Options options;
  CLI::App app{"Time of one launch over many hosts, with simulated engines behind real sockets"};
  app.add_option("--parkway", options.parkway, "the parkway binary")->capture_default_str();
  app.add_option("--processes", options.processes, "that the engines are in")->check(CLI::Range(1, 256));
  app.add_option("--hosts", options.hosts, "engines")->check(CLI::Range(2, 4096))->capture_default_str();
  app.add_option("--devices", options.devices, "of each")->check(CLI::Range(1, 64))->capture_default_str();
  app.add_option("--launches", options.launches)->check(CLI::Range(10, 100000))->capture_default_str();
  app.add_flag("--unix", options.unix_sockets, "unix sockets instead of TCP");
  CLI11_PARSE(app, argc, argv);
  return parkway::bench::Main(options);
}
