// The process of an engine: started by a worker for one lease, serves that lease's proxy, and ends with it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "base/executor.h"
#include "engine/engine.h"

namespace parkway::engine {

struct EngineOptions {
  std::string engine = "jaxlib";  // or "sim"
  int devices = 1;
  std::string host = "127.0.0.1";  // address to listen on, by which proxies and other hosts reach this one
  std::string unix_dir;            // directory for a unix socket beside it; empty: none
  int64_t memory_bytes = 0;        // limit for device memory; 0: none
  int arena_fd = -1;               // socket to the worker's arena; -1: there is none
  int ready_fd = 1;                // where the endpoints are written
  int sim_engines = 1;             // so many hosts in this process; sim only
};

// Kinds: "jaxlib", "sim" (timed by `clock`, which outlives it). INVALID_ARGUMENT for others.
absl::StatusOr<std::unique_ptr<Engine>> MakeEngine(const EngineOptions& options, Executor& clock);

// Listens, writes one line of JSON for each engine to `ready_fd` (incarnation, address, unix_path, machine, pid),
// serves one proxy for each, and ends the process with code 0 when they have gone. The lease's secret is the
// hexadecimal text in the environment variable PARKWAY_ENGINE_TOKEN. Returns an exit code when it can't start, or when
// no proxy came.
int RunEngineRole(const EngineOptions& options);

}  // namespace parkway::engine
