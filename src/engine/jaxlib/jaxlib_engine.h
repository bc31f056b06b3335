// The engine that computes on this host's CPUs with XLA: embeds Python and drives jaxlib's own CPU client, with Gloo
// between hosts (docs/design.md says why). Launching runs no Python bytecode.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "engine/engine.h"

namespace parkway::engine {

struct JaxlibEngineOptions {
  int devices = 1;
  std::string bind_host = "127.0.0.1";  // where the other hosts of a context reach this one's Gloo
};

// Starts Python at the first call in a process (0.3 s). FAILED_PRECONDITION when Python or jaxlib are not there.
absl::StatusOr<std::unique_ptr<Engine>> MakeJaxlibEngine(const JaxlibEngineOptions& options);

}  // namespace parkway::engine
