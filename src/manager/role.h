// The manager as a process: `parkway server --node_type=resource_manager`.
#pragma once

#include <string>
#include <vector>

namespace parkway::manager {

struct ManagerOptions {
  int server_port = 29001;            // 0: any free one
  std::string bind_address = "[::]";  // every address; "127.0.0.1" for this machine alone
  int instance_count = 1;             // slices
  std::string instance_type;          // "cpu:1x2"; empty: each worker is a slice of its own
  std::string state_dir;              // where it writes down what its successor must know; empty: nowhere
  std::vector<std::string> argv;      // for the log
};

// Runs until SIGTERM or SIGINT; returns the exit code: 0, or 1 when it can't start (the reason is on stderr).
int RunManagerRole(const ManagerOptions& options);

}  // namespace parkway::manager
