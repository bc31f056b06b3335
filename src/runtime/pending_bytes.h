// Bytes that a client is still sending: a host buffer that a request names before, or after, it has come. One producer
// sets it once; one consumer asks once. Any thread.
#pragma once

#include <memory>
#include <mutex>
#include <optional>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "base/bytes.h"

namespace parkway::runtime {

class PendingBytes {
 public:
  using Then = absl::AnyInvocable<void(const absl::StatusOr<Bytes>&)>;

  // Ignored when already set.
  void Set(absl::StatusOr<Bytes> bytes) {
    Then then;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (value_.has_value()) return;
      value_.emplace(std::move(bytes));
      then = std::move(then_);
    }
    if (then) then(*value_);
  }
  // Calls `then` as soon as the bytes are there: now, or on the thread that sets them.
  void When(Then then) {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (!value_.has_value()) {
        then_ = std::move(then);
        return;
      }
    }
    then(*value_);
  }
  bool is_set() const {
    std::lock_guard<std::mutex> lock(mutex_);
    return value_.has_value();
  }

 private:
  mutable std::mutex mutex_;
  std::optional<absl::StatusOr<Bytes>> value_;
  Then then_;
};
using PendingBytesRef = std::shared_ptr<PendingBytes>;

}  // namespace parkway::runtime
