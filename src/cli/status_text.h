// The manager's answer, for a person or a program to read. Pure functions.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "cli/cluster.h"

namespace parkway {
class ManagerStatus;
}

namespace parkway::cli {

// `record`: of the local cluster; empty for a manager elsewhere.
std::string StatusText(const ManagerStatus& status, const ClusterRecord& record);
std::string StatusJson(const ManagerStatus& status, const ClusterRecord& record);

// By which people name a session: "1.3" is the third that connected to the proxy of the first lease. Says nothing at
// the client's door, where sessions go by random numbers.
struct SessionId {
  uint64_t lease_epoch = 0;
  uint64_t session = 0;
};
// INVALID_ARGUMENT saying what one looks like.
absl::StatusOr<SessionId> ParseSessionId(const std::string& text);
// One line each: id, client, what it runs and for how long, bytes. Empty: there is none.
std::string SessionsText(const ManagerStatus& status);

// "1.5 GiB"
std::string BytesText(uint64_t bytes);

}  // namespace parkway::cli
