// What the engine reads in programs before and after XLA loads them.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"

namespace parkway::engine {

// INVALID_ARGUMENT when a serialized executable calls back into a Python that isn't there: running it would crash.
absl::Status RefuseHostCallbacks(std::string_view program);
// Whether it may call LAPACK.
bool UsesLapack(std::string_view program);
// Which of `parameters` the serialized xla.HloModuleProto lets XLA reuse for results. Unreadable bytes name none.
std::vector<bool> AliasedParameters(std::string_view module, size_t parameters);

}  // namespace parkway::engine
