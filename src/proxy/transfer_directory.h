// The directory by which a client on this machine hands over large host buffers: it writes DIR/lt_<handle>, names the
// handle, and the file becomes the host buffer: mapped, not copied, and gone from the directory. The file is a
// stranger's: it must be a regular file of exactly the announced size with no other name, and nobody may be able to
// change it any more; where that can't be had of the file system the bytes are copied. Any thread.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "base/bytes.h"

namespace parkway::proxy {

class TransferDirectory {
 public:
  // FAILED_PRECONDITION when it is no directory.
  static absl::StatusOr<std::unique_ptr<TransferDirectory>> Open(const std::string& path);
  ~TransferDirectory();
  TransferDirectory(const TransferDirectory&) = delete;

  // Takes the file out of the directory, also when it is refused for its size. FAILED_PRECONDITION when it isn't there
  // or is a link or no file, INVALID_ARGUMENT for another size.
  absl::StatusOr<Bytes> Take(uint64_t handle, int64_t size);

 private:
  TransferDirectory(std::string path, int fd) : path_(std::move(path)), fd_(fd) {}
  const std::string path_;
  const int fd_;
};

}  // namespace parkway::proxy
