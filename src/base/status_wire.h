// absl::Status on Parkway's own wire (proto/parkway). An unknown code that comes in counts as UNKNOWN, never as OK.
#pragma once

#include "absl/status/status.h"

namespace parkway {

class StatusProto;

absl::Status FromProto(const StatusProto& proto);
StatusProto ToProto(const absl::Status& status);

}  // namespace parkway
