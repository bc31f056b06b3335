#include "ifrt/strides.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/limits.h"

namespace parkway::ifrt {
namespace {

// One loop of a copy.
struct Loop {
  int64_t count;
  int64_t src;  // byte strides
  int64_t dst;
};
using Loops = absl::InlinedVector<Loop, 6>;

// A copy of `bytes` contiguous bytes for each turn of all loops, outermost first.
struct Plan {
  Loops loops;
  int64_t bytes;
};

// Loops in the destination's order, neighbours joined where both sides allow it, the innermost turned into bytes.
Plan MakePlan(absl::Span<const int64_t> src_strides, absl::Span<const int64_t> dst_strides,
              absl::Span<const int64_t> dims, int width) {
  Plan plan{.bytes = width};
  Loops sorted;
  for (size_t i = 0; i < dims.size(); ++i) {
    if (dims[i] != 1) sorted.push_back({dims[i], src_strides[i], dst_strides[i]});
  }
  std::stable_sort(sorted.begin(), sorted.end(), [](const Loop& a, const Loop& b) { return a.dst > b.dst; });
  for (const Loop& loop : sorted) {
    if (!plan.loops.empty()) {
      Loop& outer = plan.loops.back();
      if (outer.src == loop.count * loop.src && outer.dst == loop.count * loop.dst) {
        outer = {outer.count * loop.count, loop.src, loop.dst};
        continue;
      }
    }
    plan.loops.push_back(loop);
  }
  if (!plan.loops.empty() && plan.loops.back().src == width && plan.loops.back().dst == width) {
    plan.bytes = width * plan.loops.back().count;
    plan.loops.pop_back();
  }
  return plan;
}

template <size_t kBytes>
void CopyLine(const std::byte* src, int64_t src_stride, std::byte* dst, int64_t dst_stride, int64_t count) {
  for (int64_t i = 0; i < count; ++i) std::memcpy(dst + i * dst_stride, src + i * src_stride, kBytes);
}

// `count` pieces of `bytes` bytes.
void CopyPieces(const std::byte* src, int64_t src_stride, std::byte* dst, int64_t dst_stride, int64_t count,
                int64_t bytes) {
  switch (bytes) {
    case 1:
      return CopyLine<1>(src, src_stride, dst, dst_stride, count);
    case 2:
      return CopyLine<2>(src, src_stride, dst, dst_stride, count);
    case 4:
      return CopyLine<4>(src, src_stride, dst, dst_stride, count);
    case 8:
      return CopyLine<8>(src, src_stride, dst, dst_stride, count);
    case 16:
      return CopyLine<16>(src, src_stride, dst, dst_stride, count);
    default:
      for (int64_t i = 0; i < count; ++i) std::memcpy(dst + i * dst_stride, src + i * src_stride, bytes);
  }
}

// The two inner loops, in blocks small enough that both sides stay in the cache.
void CopyBlocks(const std::byte* src, std::byte* dst, const Loop& outer, const Loop& inner, int64_t bytes) {
  constexpr int64_t kBlock = 64;
  for (int64_t i = 0; i < outer.count; i += kBlock) {
    for (int64_t j = 0; j < inner.count; j += kBlock) {
      const int64_t i_end = std::min(i + kBlock, outer.count);
      const int64_t j_count = std::min(kBlock, inner.count - j);
      for (int64_t k = i; k < i_end; ++k) {
        CopyPieces(src + k * outer.src + j * inner.src, inner.src, dst + k * outer.dst + j * inner.dst, inner.dst,
                   j_count, bytes);
      }
    }
  }
}

void Run(const std::byte* src, std::byte* dst, absl::Span<const Loop> loops, int64_t bytes) {
  if (loops.empty()) {
    std::memcpy(dst, src, bytes);
  } else if (loops.size() == 1) {
    CopyPieces(src, loops[0].src, dst, loops[0].dst, loops[0].count, bytes);
  } else if (loops.size() == 2) {
    CopyBlocks(src, dst, loops[0], loops[1], bytes);
  } else {
    for (int64_t i = 0; i < loops[0].count; ++i) {
      Run(src + i * loops[0].src, dst + i * loops[0].dst, loops.subspan(1), bytes);
    }
  }
}

// Puts the loop over the source's closest neighbours next to the innermost one, where blocks serve them.
void BringSourceIn(Loops* loops) {
  if (loops->size() < 3) return;
  auto closest =
      std::min_element(loops->begin(), loops->end() - 1, [](const Loop& a, const Loop& b) { return a.src < b.src; });
  std::rotate(closest, closest + 1, loops->end() - 1);
}

}  // namespace

Dims RowMajorStrides(const Shape& shape, int width) { return StridesOf(shape, Layout::RowMajor(shape.rank()), width); }

Dims StridesOf(const Shape& shape, const Layout& layout, int width) {
  Dims strides(shape.rank(), 0);
  int64_t stride = width;
  for (int32_t dim : layout.minor_to_major()) {
    strides[dim] = stride;
    stride *= std::max<int64_t>(shape.dim(dim), 1);
  }
  return strides;
}

bool IsRowMajor(const Shape& shape, absl::Span<const int64_t> strides, int width) {
  if (shape.num_elements() == 0) return true;
  int64_t expected = width;
  for (int i = shape.rank(); i-- > 0;) {
    if (shape.dim(i) != 1 && strides[i] != expected) return false;
    expected *= shape.dim(i);
  }
  return true;
}

absl::StatusOr<int64_t> StridedSize(const Shape& shape, absl::Span<const int64_t> strides, int width) {
  if (strides.size() != static_cast<size_t>(shape.rank())) {
    return absl::InvalidArgumentError(
        absl::StrCat(strides.size(), " byte strides for an array of shape ", shape.ToString()));
  }
  for (int64_t stride : strides) {
    if (stride < 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("the negative byte stride ", stride, " for an array of shape ", shape.ToString()));
    }
  }
  if (shape.num_elements() == 0) return 0;
  int64_t size = width;
  for (int i = 0; i < shape.rank(); ++i) {
    const int64_t steps = shape.dim(i) - 1;
    if (steps > 0 && strides[i] > (limits::kMaxHostBufferBytes - size) / steps) {
      return absl::InvalidArgumentError(absl::StrCat("byte strides ", DimsToString(strides),
                                                     " spread an array of shape ", shape.ToString(), " over more than ",
                                                     limits::kMaxHostBufferBytes, " bytes"));
    }
    size += steps * strides[i];
  }
  if (size > limits::kMaxHostBufferBytes) {
    return absl::InvalidArgumentError(absl::StrCat("a host buffer of ", size, " bytes"));
  }
  return size;
}

void CopyStrided(const std::byte* src, absl::Span<const int64_t> src_strides, std::byte* dst,
                 absl::Span<const int64_t> dst_strides, absl::Span<const int64_t> dims, int width) {
  for (int64_t dim : dims) {
    if (dim == 0) return;
  }
  Plan plan = MakePlan(src_strides, dst_strides, dims, width);
  BringSourceIn(&plan.loops);
  Run(src, dst, plan.loops, plan.bytes);
}

void CopyRegion(const std::byte* src, const Shape& src_shape, absl::Span<const int64_t> src_start, std::byte* dst,
                const Shape& dst_shape, absl::Span<const int64_t> dst_start, absl::Span<const int64_t> size,
                int width) {
  const Dims src_strides = RowMajorStrides(src_shape, width);
  const Dims dst_strides = RowMajorStrides(dst_shape, width);
  for (size_t i = 0; i < size.size(); ++i) {
    if (size[i] == 0) return;
    src += src_start[i] * src_strides[i];
    dst += dst_start[i] * dst_strides[i];
  }
  CopyStrided(src, src_strides, dst, dst_strides, size, width);
}

}  // namespace parkway::ifrt
