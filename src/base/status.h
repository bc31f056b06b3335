// Helpers around absl::Status: early return, and adding context. Their form on the wires is status_wire.h's.
#pragma once

#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

// Returns from the function when `expr` is not OK.
#define PARKWAY_RETURN_IF_ERROR(expr)                  \
  do {                                                 \
    ::absl::Status parkway_status_ = (expr);           \
    if (!parkway_status_.ok()) return parkway_status_; \
  } while (0)

#define PARKWAY_CONCAT_INNER_(a, b) a##b
#define PARKWAY_CONCAT_(a, b) PARKWAY_CONCAT_INNER_(a, b)
// PARKWAY_ASSIGN_OR_RETURN(auto x, F());
#define PARKWAY_ASSIGN_OR_RETURN(lhs, expr) \
  PARKWAY_ASSIGN_OR_RETURN_IMPL_(PARKWAY_CONCAT_(parkway_or_, __LINE__), lhs, expr)
#define PARKWAY_ASSIGN_OR_RETURN_IMPL_(tmp, lhs, expr) \
  auto tmp = (expr);                                   \
  if (!tmp.ok()) return std::move(tmp).status();       \
  lhs = std::move(tmp).value()

namespace parkway {

// The same code, with "`context`: " before the message.
absl::Status Annotate(const absl::Status& status, std::string_view context);

}  // namespace parkway
