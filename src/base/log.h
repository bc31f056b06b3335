// Log set-up that every role shares: glog's format on stderr, and in files only where a directory is given.
#pragma once

#include <string>

namespace parkway {

// Call once, first thing in main. A crash prints its stack; a broken pipe is an error of the write and no signal.
void InitLogging(const std::string& role, const std::string& log_dir = "");

}  // namespace parkway
