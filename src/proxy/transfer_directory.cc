#include "proxy/transfer_directory.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "base/limits.h"
#include "base/status.h"

namespace parkway::proxy {
namespace {

// True when nobody has the file open for writing: the kernel grants a read lease on no other. A writer that comes in
// this moment breaks the lease; the signal for that must not be SIGIO, which ends a process.
bool HasNoWriter(int fd) {
  if (fcntl(fd, F_SETSIG, SIGURG) != 0 || fcntl(fd, F_SETLEASE, F_RDLCK) != 0) return false;
  fcntl(fd, F_SETLEASE, F_UNLCK);
  return true;
}

absl::StatusOr<Bytes> Copy(int fd, int64_t size) {
  PARKWAY_ASSIGN_OR_RETURN(std::shared_ptr<Blob> blob, Blob::CreateForOverwrite(size));
  for (int64_t done = 0; done < size;) {
    const ssize_t n = pread(fd, blob->data() + done, size - done, done);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) {
      return absl::FailedPreconditionError(n == 0 ? "it became shorter while it was read" : std::strerror(errno));
    }
    done += n;
  }
  return Blob::Share(blob);
}

}  // namespace

absl::StatusOr<std::unique_ptr<TransferDirectory>> TransferDirectory::Open(const std::string& path) {
  const int fd = open(path.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("can't use ", path, " as the directory for large transfers: ", std::strerror(errno)));
  }
  return std::unique_ptr<TransferDirectory>(new TransferDirectory(path, fd));
}

TransferDirectory::~TransferDirectory() { close(fd_); }

absl::StatusOr<Bytes> TransferDirectory::Take(uint64_t handle, int64_t size) {
  const std::string name = absl::StrCat("lt_", handle);
  const std::string what = absl::StrCat("host buffer ", handle, " in ", path_, "/", name);
  const int fd = openat(fd_, name.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
  if (fd < 0) {
    return absl::FailedPreconditionError(absl::StrCat(what, " can't be opened: ", std::strerror(errno)));
  }
  absl::Cleanup close_it = [fd] { close(fd); };
  struct stat st;
  if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode) || st.st_nlink != 1) {
    return absl::FailedPreconditionError(absl::StrCat(what, " is not a regular file of one name"));
  }
  if (unlinkat(fd_, name.c_str(), 0) != 0) {
    return absl::FailedPreconditionError(absl::StrCat(what, " can't be deleted: ", std::strerror(errno)));
  }
  if (st.st_size != size) {
    return absl::InvalidArgumentError(absl::StrCat(what, " is announced with ", size, " bytes and has ", st.st_size));
  }
  absl::StatusOr<Bytes> bytes = HasNoWriter(fd) ? Blob::Map(absl::StrCat("/proc/self/fd/", fd), size) : Copy(fd, size);
  if (!bytes.ok()) return Annotate(bytes.status(), what);
  return bytes;
}

}  // namespace parkway::proxy
