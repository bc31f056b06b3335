// Which version of the protocol a client and this proxy speak with each other: the highest that both know, capped by
// options. A client aborts on an answer outside its own range, so none is ever given. Pure functions.
#pragma once

#include "absl/status/statusor.h"

namespace parkway::proxy {

struct VersionRange {
  int min = 0;
  int max = 0;
};

struct VersionCaps {
  VersionRange protocol{16, 25};
  VersionRange serdes{3, 6};
};

struct Version {
  int protocol = 0;
  int serdes = 0;
};

// FAILED_PRECONDITION, with both ranges, when they have no version in common.
absl::StatusOr<Version> Negotiate(const VersionCaps& ours, VersionRange client_protocol, VersionRange client_serdes);

// FAILED_PRECONDITION unless the version is one that Negotiate could have given.
absl::Status CheckVersion(const VersionCaps& ours, Version version);

}  // namespace parkway::proxy
