// How a role ends: SIGTERM and SIGINT are no interruptions but something that its main thread waits for.
#pragma once

#include <string>

namespace parkway {

class ShutdownSignals {
 public:
  // Blocks the signals in this thread and in all that it starts later: make it before any other thread.
  ShutdownSignals();
  // Blocks until one has come; its name: "SIGTERM".
  std::string Wait();
  // As if `signal` had come, from any thread: a role that ends for a reason of its own.
  void Raise(int signal);
};

}  // namespace parkway
