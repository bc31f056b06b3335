// What a client compiles as a "xla::ifrt::PluginProgram": a request of pathwaysutils, in JSON, to the runtime itself.
// One kind is served: a reshard of many arrays at once. Any thread.
#pragma once

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "runtime/session.h"

namespace parkway::proxy {

// The request in the bytes of a program. INVALID_ARGUMENT with "Bad PluginProgram" for what is malformed, too large or
// unknown, down to a single field (clients look for these words to learn what a server can do); UNIMPLEMENTED for the
// known kinds that Parkway doesn't have. Whether there are such devices and memory kinds is not looked at.
absl::StatusOr<runtime::ReshardRequest> DecodePluginProgram(absl::string_view program);

}  // namespace parkway::proxy
