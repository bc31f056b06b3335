// How a process shows the one that started it that it is not frozen: a thread writes a byte to a pipe every
// limits::kHeartbeatPeriod. It tells of the process (SIGSTOP, a machine that swaps), not of what its other threads do.
#pragma once

namespace parkway {

// Names the descriptor of the pipe in the child's environment.
inline constexpr char kLivenessVariable[] = "PARKWAY_LIVENESS_FD";

// Once, early in main: starts the thread if the variable is set, and takes it out of the environment.
void StartLiveness();

}  // namespace parkway
