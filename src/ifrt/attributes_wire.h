// Attributes on the client's wire.
#pragma once

#include "absl/status/statusor.h"
#include "ifrt/attributes.h"
#include "proto/ifrt/ifrt.pb.h"

namespace parkway::ifrt {

xla::ifrt::AttributeMapProto EncodeAttributes(const Attributes& attributes);

// INVALID_ARGUMENT for an attribute without a value.
absl::StatusOr<Attributes> DecodeAttributes(const xla::ifrt::AttributeMapProto& proto);

}  // namespace parkway::ifrt
