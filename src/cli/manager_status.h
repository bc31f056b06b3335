// Asks a manager how its cluster stands. Any thread; blocks.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace parkway {
class ManagerStatus;
}

namespace parkway::cli {

// UNAVAILABLE naming the address when nobody answers within `at_most`.
absl::StatusOr<ManagerStatus> FetchManagerStatus(const std::string& address, absl::Duration at_most);

}  // namespace parkway::cli
