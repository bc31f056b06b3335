#include "proxy/role.h"

#include <glog/logging.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdlib>
#include <mutex>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "base/executor.h"
#include "base/limits.h"
#include "base/machine.h"
#include "base/random.h"
#include "base/run_in_task.h"
#include "base/shutdown.h"
#include "base/status.h"
#include "engine/compiler/pool.h"
#include "fabric/bulk.h"
#include "manager/lease_client.h"
#include "manager/slice_type.h"
#include "proxy/grpc_server.h"
#include "proxy/lease_hosts.h"

namespace parkway::proxy {
namespace {

constexpr int kWrongStart = 1;

// The pool of compilers as the core sees it.
class PooledCompiler : public runtime::Compiler {
 public:
  explicit PooledCompiler(compiler::CompilerPool::Options options) : pool_(std::move(options)) {}

  void Compile(uint64_t session, CompileJob job,
               absl::AnyInvocable<void(absl::StatusOr<CompiledProgram>)> done) override {
    const uint64_t number = job.job();
    // Held until the pool's number is known: the answer may come first.
    std::lock_guard lock(mutex_);
    jobs_[number] =
        pool_.Compile(session, std::move(job),
                      [this, number, done = std::move(done)](absl::StatusOr<compiler::ProgramRef> program) mutable {
                        {
                          std::lock_guard lock(mutex_);
                          jobs_.erase(number);
                        }
                        if (!program.ok()) return done(program.status());
                        done(CompiledProgram(**program));
                      });
  }
  void Cancel(uint64_t job) override {
    std::lock_guard lock(mutex_);
    if (auto it = jobs_.find(job); it != jobs_.end()) pool_.Cancel(it->second);
  }

 private:
  std::mutex mutex_;
  absl::flat_hash_map<uint64_t, compiler::CompilerPool::JobId> jobs_;
  compiler::CompilerPool pool_;  // goes first: its callbacks use the others
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

bool IsWildcard(const std::string& address) {
  return address.empty() || address == "[::]" || address == "::" || address == "0.0.0.0" || address == "*";
}

// By which engines on other machines pull bytes from here.
std::string OwnAddress(const ProxyOptions& options) {
  if (!options.host_address.empty()) return options.host_address;
  if (!IsWildcard(options.bind_address)) return options.bind_address;
  const std::string address = AddressTowards(options.manager_address);
  return address.empty() ? HostName() : address;
}

std::string TransferDirectoryOf(const ProxyOptions& options) {
  if (!options.large_transfer_directory.empty()) return options.large_transfer_directory;
  // The client's own name for it, and the one that stands in people's manifests.
  for (const char* name :
       {"IFRT_PROXY_GRPC_LARGE_TRANSFER_OPTIMIZATION_DIRECTORY", "IFRT_PROXY_LARGE_TRANSFER_OPTIMIZATION_DIRECTORY"}) {
    const char* value = std::getenv(name);
    if (value != nullptr && *value != '\0') return value;
  }
  return "";
}

compiler::CompilerPool::Options PoolOptions(const ProxyOptions& options) {
  compiler::CompilerPool::Options pool;
  if (!options.compiler_command.empty()) pool.argv = options.compiler_command;
  for (const std::string& flag : options.xla_flags) pool.argv.push_back(absl::StrCat("--", flag));
  if (options.compile_memory_bytes > 0) pool.memory_bytes = options.compile_memory_bytes;
  if (options.compile_timeout_seconds > 0) pool.timeout = absl::Seconds(options.compile_timeout_seconds);
  return pool;
}

void FillReport(runtime::CoreStats stats, ProxyReport* report) {
  report->set_sessions(stats.sessions);
  report->set_programs_run(stats.programs_run);
  report->set_bytes_held(stats.bytes_held);
  report->set_arrays(stats.arrays);
  report->set_executables(stats.executables);
  // A session that must be found, to be cancelled, comes before all that merely hold much.
  const auto rank = [](const runtime::SessionStats& session) {
    return std::pair(session.running >= limits::kEndlessProgramGrace, session.bytes_held);
  };
  std::stable_sort(stats.by_session.begin(), stats.by_session.end(),
                   [&](const auto& a, const auto& b) { return rank(a.second) > rank(b.second); });
  if (stats.by_session.size() > limits::kReportedSessions) stats.by_session.resize(limits::kReportedSessions);
  for (const auto& [client, session] : stats.by_session) {
    SessionReport* one = report->add_by_session();
    one->set_client(client);
    one->set_bytes_held(session.bytes_held);
    one->set_arrays(session.arrays);
    one->set_executables(session.executables);
    one->set_session(session.session);
    one->set_launches(session.launches);
    one->set_program(session.program.substr(0, limits::kMaxNameBytes));
    one->set_running_seconds(absl::ToDoubleSeconds(session.running));
  }
}

class Proxy {
 public:
  explicit Proxy(const ProxyOptions& options) : options_(options), compiler_(PoolOptions(options)) {}

  ~Proxy() {
    RunInTask(*executor_, [this] { lease_.reset(); });  // its calls are on the server's queue
    server_.reset();                                    // sessions end before the core
    RunInTask(*executor_, [this] {
      hosts_.reset();
      core_.reset();
    });
  }

  absl::Status Start(std::function<void()> refused) {
    std::vector<runtime::SliceSpec> slices;
    for (const std::string& text : options_.virtual_slices) {
      PARKWAY_ASSIGN_OR_RETURN(SliceType type, manager::ParseSliceType(text));
      slices.push_back({type.platform(), type.hosts(), type.devices_per_host()});
    }
    if (slices.empty()) return absl::InvalidArgumentError("--virtual_slices names no slice; cpu:1x2 would be one");
    PARKWAY_ASSIGN_OR_RETURN(bulk_, fabric::Bulk::Create(fabric_, OwnAddress(options_)));
    transfers_ = std::make_unique<BulkTransfers>(bulk_.get());
    RunInTask(*executor_, [&] { MakeCore(slices); });
    PARKWAY_RETURN_IF_ERROR(Serve());
    RunInTask(*executor_, [&] { AskForSlices(slices, std::move(refused)); });
    return absl::OkStatus();
  }

 private:
  void MakeCore(const std::vector<runtime::SliceSpec>& slices) {
    runtime::CoreOptions core;
    core.executor = executor_.get();
    core.compiler = &compiler_;
    core.transfers = transfers_.get();
    core.topology = runtime::Topology(slices);
    core.random = RandomUint64;
    core.restart_engine = [this](int host, uint64_t incarnation, const std::string& reason) {
      LOG(WARNING) << "asking for the engine of host " << host << " to be started again: " << reason;
      if (lease_ != nullptr) lease_->RestartEngine(incarnation, reason);
    };
    core_ = runtime::Core::Create(std::move(core));
    LeaseHosts::Options hosts;
    hosts.executor = executor_.get();
    hosts.core = core_.get();
    hosts.connect = [this](const std::string& address, fabric::LinkHandlers handlers, auto done) {
      fabric_.Connect(address, std::move(handlers), std::move(done));
    };
    hosts_ = std::make_unique<LeaseHosts>(std::move(hosts));
  }

  absl::Status Serve() {
    GrpcServer::Options server;
    server.listen = absl::StrCat(options_.bind_address, ":", options_.server_port);
    server.unix_path = options_.unix_path;
    server.versions = options_.versions;
    server.transfer_directory = TransferDirectoryOf(options_);
    if (!server.transfer_directory.empty()) mkdir(server.transfer_directory.c_str(), S_IRWXU);  // or it is there
    PARKWAY_ASSIGN_OR_RETURN(server_, GrpcServer::Start(std::move(server), executor_.get(), core_.get()));
    LOG(INFO) << "IFRT proxy server started with status OK";
    LOG(INFO) << "clients connect to grpc://" << options_.bind_address << ":" << server_->port()
              << (options_.unix_path.empty() ? "" : absl::StrCat(" or grpc://unix:", options_.unix_path));
    return absl::OkStatus();
  }

  void AskForSlices(const std::vector<runtime::SliceSpec>& slices, std::function<void()> refused) {
    LeaseRequest request;
    for (const runtime::SliceSpec& slice : slices) {
      SliceType* type = request.add_slices();
      type->set_platform(slice.platform);
      type->set_hosts(slice.hosts);
      type->set_devices_per_host(slice.devices_per_host);
    }
    request.set_owner(absl::StrCat(OwnAddress(options_), ":", server_->port()));
    request.set_pid(getpid());
    request.set_elastic_slices(options_.elastic_slices);
    manager::LeaseClient::Handlers handlers;
    handlers.on_placement = [this](const Placement& placement) { hosts_->OnPlacement(placement); };
    handlers.on_refused = [refused = std::move(refused)](const absl::Status& why) {
      LOG(ERROR) << "the manager refuses this proxy: " << why.message();
      refused();
    };
    handlers.on_cancel = [this](uint64_t session) { core_->CancelPrograms(session, "`parkway cancel` asked for it"); };
    handlers.report = [this](ProxyReport* report) { FillReport(core_->Stats(), report); };
    lease_ = std::make_unique<manager::LeaseClient>(executor_.get(), server_->queue(), options_.manager_address,
                                                    request, std::move(handlers));
  }

  const ProxyOptions options_;
  std::unique_ptr<Executor> executor_ = MakeSerialExecutor();
  fabric::Fabric fabric_;
  std::unique_ptr<fabric::Bulk> bulk_;
  std::unique_ptr<BulkTransfers> transfers_;
  PooledCompiler compiler_;
  std::unique_ptr<runtime::Core> core_;          // in tasks
  std::unique_ptr<LeaseHosts> hosts_;            // in tasks
  std::unique_ptr<manager::LeaseClient> lease_;  // in tasks
  std::unique_ptr<GrpcServer> server_;
};

}  // namespace

int RunProxyRole(const ProxyOptions& options) {
  ShutdownSignals signals;
  std::atomic<bool> refused{false};
  Proxy proxy(options);
  const absl::Status started = proxy.Start([&] {
    refused = true;
    signals.Raise(SIGTERM);
  });
  if (!started.ok()) {
    LOG(ERROR) << "The proxy can't start: " << started.message();
    return kWrongStart;
  }
  const std::string signal = signals.Wait();
  if (refused) return kWrongStart;
  LOG(INFO) << "The proxy ends: " << signal;
  return 0;
}

}  // namespace parkway::proxy
