// Copies between host buffers of arrays: strided to dense and back, and boxes between dense arrays. Strides are in
// bytes, one for each dimension, never negative. All functions are pure; the copies trust their arguments, so check
// sizes first.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "ifrt/layout.h"
#include "ifrt/shape.h"

namespace parkway::ifrt {

// Strides of a dense array of elements of `width` bytes.
Dims RowMajorStrides(const Shape& shape, int width);
Dims StridesOf(const Shape& shape, const Layout& layout, int width);

// True when the array is dense and row-major, whatever the strides of dimensions of size 1 or of an empty array.
bool IsRowMajor(const Shape& shape, absl::Span<const int64_t> strides, int width);

// Bytes from the first element to the end of the last one: what a buffer of those strides must have. INVALID_ARGUMENT
// for strides of another rank, negative ones, and more than limits::kMaxHostBufferBytes.
absl::StatusOr<int64_t> StridedSize(const Shape& shape, absl::Span<const int64_t> strides, int width);

// Copies an array of `dims` element by element between buffers of any strides that don't overlap. Runs that are
// contiguous in both are copied whole; transpositions go block by block.
void CopyStrided(const std::byte* src, absl::Span<const int64_t> src_strides, std::byte* dst,
                 absl::Span<const int64_t> dst_strides, absl::Span<const int64_t> dims, int width);

// Copies the box at `src_start` of a dense row-major array to the box of the same `size` at `dst_start` of another.
void CopyRegion(const std::byte* src, const Shape& src_shape, absl::Span<const int64_t> src_start, std::byte* dst,
                const Shape& dst_shape, absl::Span<const int64_t> dst_start, absl::Span<const int64_t> size, int width);

}  // namespace parkway::ifrt
