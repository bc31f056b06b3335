#include "base/bytes.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <ctime>
#include <deque>
#include <mutex>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/limits.h"
#include "base/machine.h"

namespace parkway {
namespace {

constexpr size_t kHugePage = 2 << 20;
// Smaller blocks are made without asking how much memory is left.
constexpr size_t kCheckedBytes = 16 << 20;

alignas(64) uint8_t empty_block[64];

// Which bytes a file has: another block may be given the same number after this one was freed (the inode), and this one
// be written on for other bytes (the time, which writes to a mapping leave alone).
std::string Identity(const struct stat& st) {
  return absl::StrCat(st.st_ino, ".", st.st_mtim.tv_sec, ".", st.st_mtim.tv_nsec);
}

// How other processes open `fd` of this one.
std::string LocalPath(int fd, const struct stat& st) {
  return absl::StrCat("/proc/", getpid(), "/fd/", fd, "#", Identity(st));
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

struct Block {
  int fd;
  uint8_t* data;
  size_t size;
};

void Free(const Block& block) {
  munmap(block.data, block.size);
  close(block.fd);
}

// Gives the block another identity if nobody but this process, by this descriptor, has it open or mapped; false if
// somebody has. An open file counts where it was opened, so the kernel is asked on a descriptor of its own.
bool Renew(int block, time_t use) {
  const int fd = open(absl::StrCat("/proc/self/fd/", block).c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return false;
  // Who opens it while there is a lease gets nothing, and breaks the lease; the signal for that must not be SIGIO,
  // which ends a process.
  bool renewed = false;
  if (fcntl(fd, F_SETSIG, SIGURG) == 0 && fcntl(fd, F_SETLEASE, F_WRLCK) == 0) {
    const timespec times[] = {{.tv_sec = 0, .tv_nsec = UTIME_OMIT}, {.tv_sec = use, .tv_nsec = 0}};
    renewed = futimens(fd, times) == 0;
    fcntl(fd, F_SETLEASE, F_UNLCK);
  }
  close(fd);
  return renewed;
}

}  // namespace

// Blocks that this process has done with and others may still read. Any thread.
class WarmBlocks {
 public:
  static WarmBlocks& Get() {
    static WarmBlocks* const blocks = new WarmBlocks;  // blobs may be freed while the process ends
    return *blocks;
  }

  // False when the block isn't kept.
  bool Keep(int fd, uint8_t* data, size_t size) {
    if (size > limits::kWarmBlockBytes) return false;
    std::vector<Block> freed;
    {
      std::lock_guard lock(mutex_);
      blocks_.push_back({fd, data, size});
      bytes_ += size;
      while (bytes_ > limits::kWarmBlockBytes) {
        bytes_ -= blocks_.front().size;
        freed.push_back(blocks_.front());
        blocks_.pop_front();
      }
    }
    for (const Block& block : freed) Free(block);
    return true;
  }

  // A block of just this size that nobody else uses any more; null when few tries find none.
  std::shared_ptr<Blob> Take(size_t size) {
    std::lock_guard lock(mutex_);
    int tries = limits::kWarmBlockTries;
    for (size_t left = blocks_.size(); left > 0 && tries > 0; --left) {
      const Block block = blocks_.front();
      blocks_.pop_front();
      if (block.size == size && Renew(block.fd, ++uses_)) {
        bytes_ -= size;
        return std::shared_ptr<Blob>(new Blob(block.fd, block.data, size));
      }
      if (block.size == size) --tries;
      blocks_.push_back(block);  // the next call tries others
    }
    return nullptr;
  }

  void Clear() {
    std::deque<Block> freed;
    {
      std::lock_guard lock(mutex_);
      freed.swap(blocks_);
      bytes_ = 0;
    }
    for (const Block& block : freed) Free(block);
  }

 private:
  std::mutex mutex_;
  std::deque<Block> blocks_;  // those longest kept, or not tried for longest, first
  size_t bytes_ = 0;
  time_t uses_ = 0;
};

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

absl::StatusOr<std::shared_ptr<Blob>> Blob::CreateForOverwrite(size_t size) {
  if (size >= limits::kSmallestWarmBlock) {
    if (std::shared_ptr<Blob> warm = WarmBlocks::Get().Take(size); warm != nullptr) return warm;
  }
  return Create(size);
}

absl::StatusOr<std::shared_ptr<Blob>> Blob::Create(size_t size) {
  const std::string what = absl::StrCat("a block of ", size, " bytes of shared memory");
  if (size >= kCheckedBytes && size > static_cast<uint64_t>(AvailableMemoryBytes())) {
    WarmBlocks::Get().Clear();
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
  std::string identity;
  const size_t hash = path.rfind('#');
  if (path.compare(0, 6, "/proc/") == 0 && hash != std::string::npos) {
    identity = path.substr(hash + 1);
    path.resize(hash);
  }
  auto mapping = std::make_shared<Mapping>();
  mapping->fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  struct stat st;
  if (mapping->fd < 0 || fstat(mapping->fd, &st) != 0) {
    return absl::FailedPreconditionError(WithErrno(absl::StrCat("can't open ", local_path), errno));
  }
  if (!S_ISREG(st.st_mode) || static_cast<uint64_t>(st.st_size) != size ||
      (!identity.empty() && identity != Identity(st))) {
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
    if (identity.empty()) madvise(data, size, MADV_WILLNEED);  // a file on disk; for shared memory it only costs a walk
    bytes.data = static_cast<const uint8_t*>(data);
  }
  bytes.size = size;
  bytes.local_path = LocalPath(mapping->fd, st);
  bytes.owner = std::move(mapping);
  return bytes;
}

absl::StatusOr<Bytes> Blob::MapDescriptor(int fd, size_t size) {
  struct stat st;
  if (fstat(fd, &st) != 0) {
    return absl::FailedPreconditionError(WithErrno(absl::StrCat("can't look at descriptor ", fd), errno));
  }
  return Map(LocalPath(fd, st), size);  // opened once more, for reading alone
}

Blob::~Blob() {
  if (size_ >= limits::kSmallestWarmBlock && WarmBlocks::Get().Keep(fd_, data_, size_)) return;
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
