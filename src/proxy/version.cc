#include "proxy/version.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace parkway::proxy {
namespace {

absl::StatusOr<int> Highest(const char* what, VersionRange ours, VersionRange client) {
  const int version = std::min(ours.max, client.max);
  if (version < std::max(ours.min, client.min)) {
    return absl::FailedPreconditionError(absl::StrCat("the client speaks versions ", client.min, " to ", client.max,
                                                      " of ", what, ", this proxy ", ours.min, " to ", ours.max,
                                                      ": use a jaxlib of the versions that Parkway supports"));
  }
  return version;
}

}  // namespace

absl::StatusOr<Version> Negotiate(const VersionCaps& ours, VersionRange client_protocol, VersionRange client_serdes) {
  Version version;
  PARKWAY_ASSIGN_OR_RETURN(version.protocol, Highest("the IFRT proxy protocol", ours.protocol, client_protocol));
  PARKWAY_ASSIGN_OR_RETURN(version.serdes, Highest("the IFRT serialization", ours.serdes, client_serdes));
  return version;
}

absl::Status CheckVersion(const VersionCaps& ours, Version version) {
  return Negotiate(ours, {version.protocol, version.protocol}, {version.serdes, version.serdes}).status();
}

}  // namespace parkway::proxy
