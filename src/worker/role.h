// The worker as a process: `parkway server` without --node_type, one on each host.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace parkway::worker {

struct WorkerOptions {
  int server_port = 29005;            // 0: any free one
  std::string bind_address = "[::]";  // every address; "127.0.0.1" for this machine alone
  std::string manager_address;        // host:port
  std::string name;                   // identity; empty: host name and port
  std::string address;                // by which others reach this host; empty: the one that leads to the manager
  std::string slice;                  // it belongs to; empty: MEGASCALE_SLICE_ID's, or as the manager groups
  int host = -1;                      // index in its slice; -1: TPU_WORKER_ID's, or as the manager seats
  std::string platform = "cpu";
  int devices = 0;                          // 0: as many as the manager's --instance_type says
  int64_t memory_bytes = 0;                 // limit of its engine for device memory, all devices together; 0: none
  std::string engine = "jaxlib";            // --engine of the engine process
  int64_t arena_bytes = 0;                  // host memory for the arrays of one session; 0: half of what is free now
  std::vector<std::string> engine_command;  // empty: this program's `engine`
  std::vector<std::string> argv;            // for the log
};

// Runs until SIGTERM or SIGINT; returns the exit code: 0 then, 1 when it can't start or the manager keeps refusing it
// (the reason is on stderr).
int RunWorkerRole(const WorkerOptions& options);

}  // namespace parkway::worker
