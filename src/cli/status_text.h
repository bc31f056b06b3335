// The manager's answer, for a person or a program to read. Pure functions.
#pragma once

#include <string>

#include "cli/cluster.h"

namespace parkway {
class ManagerStatus;
}

namespace parkway::cli {

// `record`: of the local cluster; empty for a manager elsewhere.
std::string StatusText(const ManagerStatus& status, const ClusterRecord& record);
std::string StatusJson(const ManagerStatus& status, const ClusterRecord& record);

// "1.5 GiB"
std::string BytesText(uint64_t bytes);

}  // namespace parkway::cli
