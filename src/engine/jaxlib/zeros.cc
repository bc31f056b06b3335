#include "engine/jaxlib/zeros.h"

#include <sys/mman.h>

#include "absl/strings/str_cat.h"

namespace parkway::engine {

absl::StatusOr<Bytes> ZeroPages::Get(size_t size) {
  absl::MutexLock lock(&mutex_);
  if (largest_.data == nullptr || largest_.size < size) {
    const size_t mapped = size == 0 ? 1 : size;
    void* address = mmap(nullptr, mapped, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (address == MAP_FAILED) {
      return absl::ResourceExhaustedError(absl::StrCat("no address space for ", size, " zero bytes"));
    }
    largest_.data = static_cast<const uint8_t*>(address);
    largest_.size = mapped;
    largest_.owner =
        std::shared_ptr<const void>(address, [mapped](const void* p) { munmap(const_cast<void*>(p), mapped); });
  }
  Bytes zeros = largest_;
  zeros.size = size;
  return zeros;
}

}  // namespace parkway::engine
