// Which processes can share memory: those with the same machine identity (boot id, pid namespace, user).
#pragma once

#include <string>

namespace parkway {

// Cached after the first call; any thread.
const std::string& MachineIdentity();

}  // namespace parkway
