// Remap plans on the client's wire, which are given in either of two ways: intervals of shard numbers, or the devices
// that each output takes from each input.
#pragma once

#include "absl/status/statusor.h"
#include "ifrt/remap.h"
#include "proto/ifrt/ifrt.pb.h"

namespace parkway::ifrt {

// INVALID_ARGUMENT unless every shard of every output comes from exactly one input shard, on the same device, of the
// same element type and shape.
absl::StatusOr<RemapPlan> DecodeRemapPlan(const xla::ifrt::RemapPlanProto& proto);

}  // namespace parkway::ifrt
