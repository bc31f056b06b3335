// absl::Status on the client's wire.
#pragma once

#include "absl/status/status.h"
#include "proto/ifrt/status.pb.h"

namespace parkway::proxy {

void EncodeStatus(const absl::Status& status, tensorflow::StatusProto* proto);
// A code that doesn't exist counts as UNKNOWN.
absl::Status DecodeStatus(const tensorflow::StatusProto& proto);

}  // namespace parkway::proxy
