// Named values that describe devices, clients and costs.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <variant>
#include <vector>

namespace parkway::ifrt {

using Attribute = std::variant<std::string, bool, int64_t, std::vector<int64_t>, float>;
using Attributes = std::map<std::string, Attribute>;

}  // namespace parkway::ifrt
