// Log lines of a role that waits for another one: at once, then every limits::kWaitLogPeriod, and once when it is over.
#pragma once

#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/limits.h"
#include "glog/logging.h"

namespace parkway::manager {

class WaitLog {
 public:
  explicit WaitLog(std::string what) : what_(std::move(what)) {}

  void Still(absl::Time now, const absl::Status& why) {
    if (now - said_ < limits::kWaitLogPeriod) return;
    said_ = now;
    LOG(WARNING) << "Waiting for " << what_ << " (" << (why.ok() ? "it ended the connection" : why.message())
                 << "); it is tried again for ever.";
  }
  void Over() {
    if (std::exchange(said_, absl::InfinitePast()) != absl::InfinitePast())
      LOG(INFO) << "Connected to " << what_ << ".";
  }

 private:
  std::string what_;
  absl::Time said_ = absl::InfinitePast();
};

}  // namespace parkway::manager
