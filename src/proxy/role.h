// The proxy as a process: `parkway proxy_server`. The door in front, the core behind it, compilers of its own, and the
// engines that the manager leases to it. It serves before there is any slice, or any manager.
#pragma once

#include <string>
#include <vector>

#include "proxy/version.h"

namespace parkway::proxy {

struct ProxyOptions {
  int server_port = 29000;                  // 0: any free one
  std::string bind_address = "[::]";        // every address; "127.0.0.1" for this machine alone
  std::string unix_path;                    // empty: none
  std::string host_address;                 // by which engines reach this host; empty: the one towards the manager
  std::string manager_address;              // host:port
  std::vector<std::string> virtual_slices;  // "cpu:1x2", ...
  int elastic_slices = 0;
  std::string large_transfer_directory;  // empty: as the environment says, or none
  VersionCaps versions;
  std::vector<std::string> compiler_command;  // empty: this program's `compiler`
  std::vector<std::string> xla_flags;         // "xla_name=value", for each program that is compiled
  int64_t compile_memory_bytes = 0;           // 0: the default
  int compile_timeout_seconds = 0;            // 0: the default
};

// Runs until SIGTERM or SIGINT; returns the exit code: 0 then, 1 when it can't start or the manager refuses its request
// (the reason is in the log).
int RunProxyRole(const ProxyOptions& options);

}  // namespace parkway::proxy
