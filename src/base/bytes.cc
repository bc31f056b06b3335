#include "base/bytes.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/machine.h"

namespace parkway {
namespace {

constexpr size_t kHugePage = 2 << 20;
// Smaller blocks are made without asking how much memory is left.
constexpr size_t kCheckedBytes = 16 << 20;

alignas(64) uint8_t empty_block[64];

// How other processes open `fd` of this one. The inode makes sure that they don't get another block which was given the
// same number after this one was freed.
std::string LocalPath(int fd, const struct stat& st) {
  return absl::StrCat("/proc/", getpid(), "/fd/", fd, "#", st.st_ino);
}

// "`what`: No space left on device"
std::string WithErrno(const std::string& what, int error) {
  return std::string(absl::ErrnoToStatus(error, what).message());
}

// A read-only mapping and its descriptor, which lets this process hand the bytes on.
struct Mapping {
  ~Mapping() {
    if (size > 0) munmap(data, size);
    if (fd >= 0) close(fd);
  }
  int fd = -1;
  void* data = nullptr;
  size_t size = 0;
};

}  // namespace

Bytes Bytes::Slice(size_t offset, size_t length) const {
  Bytes slice;
  if (offset > size) offset = size;
  slice.data = data + offset;
  slice.size = std::min(length, size - offset);
  slice.owner = owner;
  return slice;
}

Bytes Bytes::OfString(std::string bytes) {
  auto owner = std::make_shared<const std::string>(std::move(bytes));
  Bytes result;
  result.data = reinterpret_cast<const uint8_t*>(owner->data());
  result.size = owner->size();
  result.owner = std::move(owner);
  return result;
}

absl::StatusOr<std::shared_ptr<Blob>> Blob::Create(size_t size) {
  const std::string what = absl::StrCat("a block of ", size, " bytes of shared memory");
  if (size >= kCheckedBytes) {
    const int64_t available = AvailableMemoryBytes();
    if (size > static_cast<uint64_t>(available)) {
      return absl::ResourceExhaustedError(
          absl::StrCat("can't make ", what, ": this machine has ", available, " bytes of memory left"));
    }
  }
  const int fd = memfd_create("parkway", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (fd < 0) {
    return absl::ResourceExhaustedError(WithErrno(absl::StrCat("can't make ", what), errno));
  }
  uint8_t* data = empty_block;
  // Sealing the size means that no reader can be killed by a block that shrinks under it.
  bool ok = ftruncate(fd, static_cast<off_t>(size)) == 0 && fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) == 0;
  if (ok && size > 0) {
    void* mapped = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    ok = mapped != MAP_FAILED;
    data = static_cast<uint8_t*>(mapped);
  }
  if (!ok) {
    const int error = errno;
    close(fd);
    return absl::ResourceExhaustedError(WithErrno(absl::StrCat("can't make ", what), error));
  }
  if (size >= kHugePage) madvise(data, size, MADV_HUGEPAGE);  // where the machine allows it; else nothing
  return std::shared_ptr<Blob>(new Blob(fd, data, size));
}

absl::StatusOr<Bytes> Blob::Map(const std::string& local_path, size_t size) {
  std::string path = local_path;
  uint64_t inode = 0;
  const size_t hash = path.rfind('#');
  if (path.compare(0, 6, "/proc/") == 0 && hash != std::string::npos) {
    if (!absl::SimpleAtoi(path.substr(hash + 1), &inode)) {
      return absl::FailedPreconditionError(absl::StrCat("can't map ", local_path, ": no inode after '#'"));
    }
    path.resize(hash);
  }
  auto mapping = std::make_shared<Mapping>();
  mapping->fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  struct stat st;
  if (mapping->fd < 0 || fstat(mapping->fd, &st) != 0) {
    return absl::FailedPreconditionError(WithErrno(absl::StrCat("can't open ", local_path), errno));
  }
  if (!S_ISREG(st.st_mode) || static_cast<uint64_t>(st.st_size) != size || (inode != 0 && inode != st.st_ino)) {
    return absl::FailedPreconditionError(absl::StrCat("can't map ", local_path, ": expected ", size,
                                                      " bytes, found another file, of ", st.st_size, " bytes"));
  }
  Bytes bytes;
  bytes.data = empty_block;
  if (size > 0) {
    void* data = mmap(nullptr, size, PROT_READ, MAP_SHARED, mapping->fd, 0);
    if (data == MAP_FAILED) {
      return absl::FailedPreconditionError(WithErrno(absl::StrCat("can't map ", local_path), errno));
    }
    mapping->data = data;
    mapping->size = size;
    if (inode == 0) madvise(data, size, MADV_WILLNEED);  // a file on disk; for shared memory it only costs a walk
    bytes.data = static_cast<const uint8_t*>(data);
  }
  bytes.size = size;
  bytes.local_path = LocalPath(mapping->fd, st);
  bytes.owner = std::move(mapping);
  return bytes;
}

Blob::~Blob() {
  if (size_ > 0) munmap(data_, size_);
  close(fd_);
}

Bytes Blob::Share(const std::shared_ptr<Blob>& self) {
  Bytes bytes;
  bytes.data = self->data_;
  bytes.size = self->size_;
  bytes.owner = self;
  struct stat st;
  if (fstat(self->fd_, &st) == 0) bytes.local_path = LocalPath(self->fd_, st);
  return bytes;
}

}  // namespace parkway
