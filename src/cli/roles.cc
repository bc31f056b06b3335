#include "cli/roles.h"

#include <glog/logging.h>

#include <algorithm>
#include <cstdio>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "base/log.h"
#include "base/machine.h"
#include "cli/arguments.h"
#include "cli/flags.h"
#include "engine/compiler/role.h"
#include "engine/role.h"
#include "manager/role.h"
#include "manager/slice_type.h"
#include "proto/parkway/manager.pb.h"
#include "proxy/role.h"
#include "worker/role.h"

namespace parkway::cli {
namespace {

constexpr int kWrongFlags = 2;

// Parses, starts the log and prints the arguments to it as Google's servers do. The exit code when the role is not to
// run.
std::optional<int> Begin(const std::string& role, FlagSet& flags, const CommandArguments& args,
                         const std::string& log_dir) {
  if (std::find(args.begin(), args.end(), "--help") != args.end()) {
    std::fputs(flags.Help().c_str(), stdout);
    return 0;
  }
  std::vector<std::string> warnings;
  if (const absl::Status parsed = flags.Parse(args, &warnings); !parsed.ok()) {
    std::fprintf(stderr, "%s\n", std::string(parsed.message()).c_str());
    return kWrongFlags;
  }
  InitLogging(role, log_dir);
  RaiseOpenFileLimit();
  LOG(INFO) << "argv[0]: 'parkway " << role << "'";
  for (size_t i = 0; i < args.size(); ++i) LOG(INFO) << "argv[" << i + 1 << "]: '" << args[i] << "'";
  for (const std::string& warning : warnings) LOG(WARNING) << warning;
  return std::nullopt;
}

absl::Status CheckPort(const char* flag, int64_t port) {
  if (port >= 0 && port <= 65535) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("--", flag, " takes a port from 1 to 65535, or 0 for any free one, not ", port));
}

// The exit code for a flag whose value can't be.
std::optional<int> Check(const absl::Status& status) {
  if (status.ok()) return std::nullopt;
  std::fprintf(stderr, "%s\n", std::string(status.message()).c_str());
  return kWrongFlags;
}

// Replaces the address by what ParseAddress makes of it.
absl::Status ResolveManager(std::string& address) {
  if (address.empty()) {
    return absl::InvalidArgumentError("--resource_manager_address is missing: host:port of the resource manager");
  }
  std::vector<std::string> warnings;
  const auto parsed = ParseAddress("resource_manager_address", address, &warnings);
  for (const std::string& warning : warnings) LOG(WARNING) << warning;
  if (parsed.ok()) address = *parsed;
  return parsed.status();
}

int RunManager(const CommandArguments& args) {
  manager::ManagerOptions options;
  std::string log_dir, node_type;
  int64_t port = options.server_port, count = options.instance_count;
  FlagSet flags("server --node_type=resource_manager");
  flags.Add("node_type", &node_type, "resource_manager");
  flags.Add("server_port", &port, "port to listen on");
  flags.Add("bind_address", &options.bind_address, "address to listen on; 127.0.0.1 for this machine alone");
  flags.Add("instance_count", &count, "slices that are expected");
  flags.Add("state_dir", &options.state_dir,
            "directory for what a manager that starts anew must know: seats, leases; empty: nothing is written down");
  flags.Add("instance_type", &options.instance_type, "their type, such as cpu:1x2 (hosts x devices per host)");
  flags.AddLogFlags(&log_dir);
  if (const auto code = Begin("manager", flags, args, log_dir)) return *code;
  if (const auto code = Check(CheckPort("server_port", port))) return *code;
  if (!options.instance_type.empty()) {
    if (const auto code = Check(manager::ParseSliceType(options.instance_type).status())) return *code;
  }
  options.server_port = static_cast<int>(port);
  options.instance_count = static_cast<int>(count);
  return manager::RunManagerRole(options);
}

int RunWorker(const CommandArguments& args) {
  worker::WorkerOptions options;
  std::string log_dir, node_type;
  int64_t port = options.server_port, host = options.host, devices = options.devices;
  FlagSet flags("server");
  flags.Add("node_type", &node_type, "resource_manager, or worker");
  flags.Add("server_port", &port, "port to listen on");
  flags.Add("bind_address", &options.bind_address, "address to listen on; 127.0.0.1 for this machine alone");
  flags.Add("resource_manager_address", &options.manager_address, "host:port of the resource manager");
  flags.Add("worker_name", &options.name, "identity; by default host name and port");
  flags.Add("host_address", &options.address, "by which other hosts reach this one");
  flags.Add("slice", &options.slice, "slice that this host belongs to; by default as the manager groups");
  flags.Add("host_index", &host, "index in its slice");
  flags.Add("devices", &devices, "devices of this host; 0: as the manager's --instance_type says");
  flags.Add("memory_bytes", &options.memory_bytes, "limit for memory of all its devices together; 0: none");
  flags.Add("engine", &options.engine, "what computes: jaxlib, or sim");
  flags.Add("arena_bytes", &options.arena_bytes,
            "host memory (pinned_host, unpinned_host) for the arrays of one session; 0: half of what is free");
  flags.AddLogFlags(&log_dir);
  if (const auto code = Begin("worker", flags, args, log_dir)) return *code;
  if (const auto code = Check(CheckPort("server_port", port))) return *code;
  if (const auto code = Check(ResolveManager(options.manager_address))) return *code;
  if (options.memory_bytes < 0) {
    return *Check(absl::InvalidArgumentError("--memory_bytes takes a size in bytes, or 0 for no limit"));
  }
  options.server_port = static_cast<int>(port);
  options.host = static_cast<int>(host);
  options.devices = static_cast<int>(devices);
  return worker::RunWorkerRole(options);
}

}  // namespace

int Server(const CommandArguments& args) {
  // Which flags there are depends on this one, wherever it stands.
  std::string node_type;
  for (size_t i = 0; i < args.size(); ++i) {
    const std::string name = absl::StrReplaceAll(args[i].substr(0, args[i].find('=')), {{"-", "_"}});
    if (name != "__node_type" && name != "_node_type") continue;
    const size_t equals = args[i].find('=');
    node_type = equals != std::string::npos ? args[i].substr(equals + 1) : i + 1 < args.size() ? args[i + 1] : "";
  }
  if (node_type == "resource_manager") return RunManager(args);
  if (node_type.empty() || node_type == "worker") return RunWorker(args);
  std::fprintf(stderr, "parkway server: --node_type takes resource_manager or worker, not '%s'\n", node_type.c_str());
  return kWrongFlags;
}

int ProxyServer(const CommandArguments& args) {
  proxy::ProxyOptions options;
  std::string log_dir, sidecar;
  int64_t port = options.server_port, elastic = options.elastic_slices,
          compile_seconds = options.compile_timeout_seconds;
  int64_t protocol = options.versions.protocol.max, serdes = options.versions.serdes.max;
  FlagSet flags("proxy_server");
  flags.Add("server_port", &port, "port that JAX clients connect to");
  flags.Add("bind_address", &options.bind_address, "address to listen on; 127.0.0.1 for this machine alone");
  flags.Add("unix_socket", &options.unix_path,
            "path of a socket for clients on this machine; lower case, as JAX lowers it");
  flags.Add("resource_manager_address", &options.manager_address, "host:port of the resource manager");
  flags.Add("host_address", &options.host_address, "by which engines reach this host");
  flags.Add("virtual_slices", &options.virtual_slices, "slices to lease, such as cpu:1x2,cpu:1x2");
  flags.Add("num_elastic_slices", &elastic, "slices that may be missing");
  flags.Add("large_transfer_directory", &options.large_transfer_directory,
            "where clients on this machine put large arrays; by default as the environment says");
  flags.Add("max_protocol_version", &protocol, "highest protocol version to speak");
  flags.Add("max_serdes_version", &serdes, "highest version of serialized forms");
  flags.Add("compile_memory_bytes", &options.compile_memory_bytes, "limit of one compiler; 0: the default");
  flags.Add("compile_timeout_seconds", &compile_seconds, "limit of one compile; 0: the default");
  flags.AddPrefix("xla_", &options.xla_flags, "of XLA's, for each program that is compiled");
  flags.Add("sidecar_name", &sidecar, "accepted; there is no colocated Python yet");
  flags.AddLogFlags(&log_dir);
  if (const auto code = Begin("proxy", flags, args, log_dir)) return *code;
  if (const auto code = Check(CheckPort("server_port", port))) return *code;
  if (const auto code = Check(ResolveManager(options.manager_address))) return *code;
  for (const std::string& slice : options.virtual_slices) {
    if (const auto code = Check(manager::ParseSliceType(slice).status())) return *code;
  }
  options.server_port = static_cast<int>(port);
  options.elastic_slices = static_cast<int>(elastic);
  options.versions.protocol.max = static_cast<int>(protocol);
  options.versions.serdes.max = static_cast<int>(serdes);
  options.compile_timeout_seconds = static_cast<int>(compile_seconds);
  return proxy::RunProxyRole(options);
}

int Engine(const CommandArguments& args) {
  engine::EngineOptions options;
  std::string log_dir;
  int64_t devices = options.devices, ready_fd = options.ready_fd, arena_fd = options.arena_fd;
  int64_t sim_engines = options.sim_engines;
  FlagSet flags("engine");
  flags.Add("engine", &options.engine, "what computes: jaxlib, or sim");
  flags.Add("devices", &devices, "devices");
  flags.Add("host", &options.host, "address to listen on, by which proxies and other hosts reach this one");
  flags.Add("unix_dir", &options.unix_dir, "directory for a unix socket");
  flags.Add("memory_bytes", &options.memory_bytes, "limit for device memory; 0: none");
  flags.Add("ready_fd", &ready_fd, "descriptor that the endpoint is written to");
  flags.Add("arena_fd", &arena_fd, "descriptor of a socket to the worker's arena");
  flags.Add("sim_engines", &sim_engines, "hosts in this process; sim only");
  flags.AddLogFlags(&log_dir);
  if (const auto code = Begin("engine", flags, args, log_dir)) return *code;
  options.devices = static_cast<int>(devices);
  options.ready_fd = static_cast<int>(ready_fd);
  options.arena_fd = static_cast<int>(arena_fd);
  options.sim_engines = static_cast<int>(sim_engines);
  return engine::RunEngineRole(options);
}

int Compiler(const CommandArguments& args) {
  std::string log_dir;
  int64_t fd = -1;
  FlagSet flags("compiler");
  std::vector<std::string> xla_flags;
  flags.Add("fd", &fd, "descriptor of the socket to serve");
  flags.AddPrefix("xla_", &xla_flags, "of XLA's, for each program that is compiled");
  flags.AddLogFlags(&log_dir);
  if (const auto code = Begin("compiler", flags, args, log_dir)) return *code;
  return compiler::RunCompilerRole(static_cast<int>(fd), xla_flags);
}

}  // namespace parkway::cli
