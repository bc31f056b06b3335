// Shapes and boxes of arrays. A Shape is valid by construction: its rank and sizes lie inside the limits, so that the
// arithmetic of everybody who holds one can't overflow. Values; any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/container/inlined_vector.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "ifrt/dtype.h"

namespace parkway::ifrt {

using Dims = absl::InlinedVector<int64_t, 6>;

// "[2,3]"; at most the first 16 entries.
std::string DimsToString(absl::Span<const int64_t> dims);

class Shape {
 public:
  Shape() = default;  // a scalar

  // INVALID_ARGUMENT for a rank over limits::kMaxRank, a negative size, or sizes whose product without the zeros is
  // over limits::kMaxArrayBytes.
  static absl::StatusOr<Shape> Make(absl::Span<const int64_t> dims);

  const Dims& dims() const { return dims_; }
  int64_t dim(int i) const { return dims_[i]; }
  int rank() const { return static_cast<int>(dims_.size()); }
  int64_t num_elements() const { return num_elements_; }

  // Bytes of the dense row-major array. INVALID_ARGUMENT for types without a fixed size and over
  // limits::kMaxArrayBytes.
  absl::StatusOr<int64_t> ByteSize(DType type) const;

  std::string ToString() const { return DimsToString(dims_); }

  friend bool operator==(const Shape& a, const Shape& b) { return a.dims_ == b.dims_; }
  template <typename H>
  friend H AbslHashValue(H h, const Shape& s) {
    return H::combine(std::move(h), s.dims_);
  }

 private:
  Dims dims_;
  int64_t num_elements_ = 1;
};

// A box inside an array, in elements. Start and size have the array's rank.
struct Region {
  Dims start;
  Dims size;

  int64_t num_elements() const;
  std::string ToString() const;  // "[0:2,4:8]"
  friend bool operator==(const Region& a, const Region& b) { return a.start == b.start && a.size == b.size; }
  template <typename H>
  friend H AbslHashValue(H h, const Region& r) {
    return H::combine(std::move(h), r.start, r.size);
  }
};

// The whole of an array.
Region WholeRegion(const Shape& shape);

// What two boxes of one array have in common; nothing if that is empty.
std::optional<Region> Intersect(const Region& a, const Region& b);

}  // namespace parkway::ifrt
