// What the command line asks of a manager. Any thread; blocks.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace parkway {
class ManagerStatus;
}

namespace parkway::cli {

// UNAVAILABLE naming the address when nobody answers within `at_most`.
absl::StatusOr<ManagerStatus> FetchManagerStatus(const std::string& address, absl::Duration at_most);

// Asks the proxy of that lease to end the programs of a session; 0: of all its sessions. Returns as soon as the manager
// has passed it on.
absl::Status CancelPrograms(const std::string& address, uint64_t lease_epoch, uint64_t session, absl::Duration at_most);

}  // namespace parkway::cli
