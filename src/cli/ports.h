// Ports of this machine's loopback that a cluster may take.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace parkway::cli {

// FAILED_PRECONDITION naming the first port that is in use, and the process that listens there as far as this user may
// see it.
absl::Status CheckPortsFree(const std::vector<int>& ports);

// A base such that base + each offset is free. Below the ports that the kernel gives to outgoing connections.
absl::StatusOr<int> FindFreeBase(const std::vector<int>& offsets);

}  // namespace parkway::cli
