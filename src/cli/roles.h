// The server roles' command lines: Google's flags, and ours, into each role's options. A wrong flag is said on stderr
// and gives exit code 2; otherwise the role runs until it is told to stop, and its exit code is returned.
#pragma once

#include "cli/commands.h"

namespace parkway::cli {

int Server(const CommandArguments& args);       // --node_type=resource_manager: the manager; otherwise a worker
int ProxyServer(const CommandArguments& args);  // the door for JAX clients
int Engine(const CommandArguments& args);       // started by workers
int Compiler(const CommandArguments& args);     // started by proxies

}  // namespace parkway::cli
