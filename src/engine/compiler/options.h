// What a client's compile options become before XLA sees them: what the program means stays, what belongs to the
// client's own machine goes. Two clients that ask for the same program then get the same executable.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace parkway::compiler {

// Takes and gives a serialized xla.CompileOptionsProto. Out go the debug options (a copy of the client's own flags;
// single ones come by env_option_overrides), device ordinals and process numbers; the device assignment becomes 0 to
// num_devices - 1, replica by replica, partition by partition. INVALID_ARGUMENT when replicas times partitions is not
// num_devices; UNIMPLEMENTED for overrides that name files of the compiler's machine. Any thread.
absl::StatusOr<std::string> NormaliseOptions(absl::string_view serialized, int num_devices);

}  // namespace parkway::compiler
