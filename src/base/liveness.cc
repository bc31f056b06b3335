#include "base/liveness.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <thread>

#include "absl/strings/numbers.h"
#include "absl/time/clock.h"
#include "base/limits.h"
#include "glog/logging.h"

namespace parkway {

void StartLiveness() {
  const char* text = std::getenv(kLivenessVariable);
  if (text == nullptr) return;
  int fd = -1;
  const bool valid = absl::SimpleAtoi(text, &fd) && fcntl(fd, F_SETFD, FD_CLOEXEC) == 0;
  unsetenv(kLivenessVariable);
  if (!valid) {
    LOG(WARNING) << kLivenessVariable
                 << " does not name an open descriptor; nobody will notice when this process freezes.";
    return;
  }
  fcntl(fd, F_SETFL, O_NONBLOCK);  // a full pipe says as much as one more byte
  std::thread([fd] {
    while (write(fd, ".", 1) > 0 || errno == EAGAIN || errno == EINTR) absl::SleepFor(limits::kHeartbeatPeriod);
  }).detach();
}

}  // namespace parkway
