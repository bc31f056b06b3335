#include "base/shutdown.h"

#include <unistd.h>

#include <csignal>

namespace parkway {
namespace {

sigset_t Signals() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGTERM);
  sigaddset(&set, SIGINT);
  return set;
}

}  // namespace

ShutdownSignals::ShutdownSignals() {
  const sigset_t set = Signals();
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
}

std::string ShutdownSignals::Wait() {
  const sigset_t set = Signals();
  int signal = 0;
  while (sigwait(&set, &signal) != 0) {
  }
  return signal == SIGTERM ? "SIGTERM" : "SIGINT";
}

void ShutdownSignals::Raise(int signal) { kill(getpid(), signal); }

}  // namespace parkway
