// Zero bytes of any number that cost no memory: one read-only private mapping, which reads of give the machine's zero
// page.
#pragma once

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "base/bytes.h"

namespace parkway::engine {

class ZeroPages {
 public:
  // RESOURCE_EXHAUSTED when the address space has no room. Any thread.
  absl::StatusOr<Bytes> Get(size_t size);

 private:
  absl::Mutex mutex_;
  Bytes largest_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace parkway::engine
