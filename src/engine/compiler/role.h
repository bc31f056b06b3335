// `parkway compiler --fd=N`: a process that compiles one program at a time for the proxy at the other end of a socket
// pair, and may be killed at any moment.
#pragma once

#include <string>
#include <vector>

namespace parkway::compiler {

// Serves CompileJobs from the stream socket `fd` until its other end closes; returns the process's exit code. A
// compiler that could not start (no Python, no jaxlib) answers every job with the reason. `xla_flags`: "name=value",
// set for each program that doesn't bring a value of its own; those that this XLA doesn't take warn and are left out.
int RunCompilerRole(int fd, const std::vector<std::string>& xla_flags);

}  // namespace parkway::compiler
