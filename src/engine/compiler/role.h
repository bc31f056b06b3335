// `parkway compiler --fd=N`: a process that compiles one program at a time for the proxy at the other end of a socket
// pair, and may be killed at any moment.
#pragma once

namespace parkway::compiler {

// Serves CompileJobs from the stream socket `fd` until its other end closes; returns the process's exit code. A
// compiler that could not start (no Python, no jaxlib) answers every job with the reason.
int RunCompilerRole(int fd);

}  // namespace parkway::compiler
