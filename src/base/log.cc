#include "base/log.h"

#include <glog/logging.h>

#include <csignal>

namespace parkway {

void InitLogging(const std::string& role, const std::string& log_dir) {
  static const std::string* name = new std::string("parkway-" + role);  // glog keeps the pointer
  std::signal(SIGPIPE, SIG_IGN);
  FLAGS_logbufsecs = 0;
  FLAGS_log_year_in_prefix = false;  // I1101 04:51:41.967764: tools read these lines
  if (log_dir.empty()) {
    FLAGS_logtostderr = true;
  } else {
    FLAGS_log_dir = log_dir;
    FLAGS_alsologtostderr = true;
    FLAGS_stop_logging_if_full_disk = true;
  }
  google::InitGoogleLogging(name->c_str());
  google::InstallFailureSignalHandler();
  std::signal(SIGTERM, SIG_DFL);  // no crash: glog would print a stack
}

}  // namespace parkway
