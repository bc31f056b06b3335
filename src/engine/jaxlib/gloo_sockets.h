// Ends Gloo's collectives that hang on a lost host. Gloo has no call for it, but a rank that loses a connection fails
// at once.
#pragma once

#include <string>
#include <vector>

#include "absl/types/span.h"

namespace parkway::engine {

// The listeners that the values of Gloo's coordination keys name ("address:port"); values of another form give none.
std::vector<std::string> GlooListeners(absl::Span<const std::string> key_values);

// Shuts down this process's established connections from or to these listeners, and returns how many. Listening sockets
// are left alone: Gloo aborts the process when one of them goes. Any thread.
int CutConnections(absl::Span<const std::string> listeners);

}  // namespace parkway::engine
