#include "ifrt/strides.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <numeric>
#include <random>
#include <vector>

#include "base/limits.h"

namespace parkway::ifrt {
namespace {

using ::testing::ElementsAre;

std::vector<std::byte> Pattern(size_t size) {
  std::vector<std::byte> bytes(size);
  for (size_t i = 0; i < size; ++i) bytes[i] = static_cast<std::byte>((i * 131 + (i >> 8)) & 0xff);
  return bytes;
}

// The plain definition, element by element.
void Reference(const std::byte* src, absl::Span<const int64_t> src_strides, std::byte* dst,
               absl::Span<const int64_t> dst_strides, absl::Span<const int64_t> dims, int width) {
  if (dims.empty()) {
    std::memcpy(dst, src, width);
    return;
  }
  for (int64_t i = 0; i < dims[0]; ++i) {
    Reference(src + i * src_strides[0], src_strides.subspan(1), dst + i * dst_strides[0], dst_strides.subspan(1),
              dims.subspan(1), width);
  }
}

TEST(Layout, Text) {
  EXPECT_EQ(Layout::RowMajor(3).ToString(), "{2,1,0}");
  EXPECT_EQ(Layout::RowMajor(0).ToString(), "{}");
  for (const char* text : {"{}", "{0}", "{1,0}", "{0,1,2}", "{2,0,1}"}) {
    absl::StatusOr<Layout> layout = Layout::Parse(text);
    ASSERT_TRUE(layout.ok()) << layout.status();
    EXPECT_EQ(layout->ToString(), text);
  }
  EXPECT_TRUE(Layout::Parse("{ 1, 0 }")->IsRowMajor());
  EXPECT_FALSE(Layout::Parse("{0,1}")->IsRowMajor());
  EXPECT_EQ(Layout::Parse("{1,0:T(8,128)}").status().code(), absl::StatusCode::kUnimplemented);
  for (const char* bad : {"", "{", "1,0", "{1}", "{0,0}", "{-1,0}", "{a}", "{0,}", "{99999999999999999999}"}) {
    EXPECT_EQ(Layout::Parse(bad).status().code(), absl::StatusCode::kInvalidArgument) << bad;
  }
  std::string many = "{0";
  for (int i = 1; i < 10000; ++i) many += "," + std::to_string(i);
  EXPECT_EQ(Layout::Parse(many + "}").status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(Strides, OfLayouts) {
  const Shape shape = *Shape::Make({2, 3, 4});
  EXPECT_THAT(RowMajorStrides(shape, 4), ElementsAre(48, 16, 4));
  EXPECT_THAT(StridesOf(shape, *Layout::Parse("{0,1,2}"), 4), ElementsAre(4, 8, 24));
  EXPECT_TRUE(IsRowMajor(shape, {48, 16, 4}, 4));
  EXPECT_FALSE(IsRowMajor(shape, {4, 8, 24}, 4));
  EXPECT_TRUE(IsRowMajor(*Shape::Make({1, 5}), {999, 4}, 4));
  EXPECT_TRUE(IsRowMajor(*Shape::Make({0, 5}), {1, 1}, 4));
}

TEST(Strides, SizeOfTheRegion) {
  struct Case {
    std::vector<int64_t> dims, strides;
    int width;
    int64_t want;  // -1: INVALID_ARGUMENT
  };
  const int64_t big = int64_t{1} << 62;
  for (const Case& c : std::vector<Case>{{{}, {}, 4, 4},
                                         {{2, 3}, {12, 4}, 4, 24},
                                         {{2, 3}, {4, 8}, 4, 24},
                                         {{2, 3}, {24, 8}, 4, 44},
                                         {{0, 3}, {big, big}, 4, 0},
                                         {{5}, {0}, 4, 4},
                                         {{1}, {big}, 4, 4},
                                         {{2}, {big}, 4, -1},
                                         {{3, 3}, {big, big}, 4, -1},
                                         {{2}, {INT64_MAX}, 4, -1},
                                         {{2}, {-4}, 4, -1},
                                         {{2}, {INT64_MIN}, 4, -1},
                                         {{2}, {}, 4, -1},
                                         {{2}, {4, 4}, 4, -1}}) {
    absl::StatusOr<int64_t> size = StridedSize(*Shape::Make(c.dims), c.strides, c.width);
    if (c.want < 0) {
      EXPECT_EQ(size.status().code(), absl::StatusCode::kInvalidArgument) << DimsToString(c.strides);
    } else {
      ASSERT_TRUE(size.ok()) << size.status();
      EXPECT_EQ(*size, c.want) << DimsToString(c.strides);
    }
  }
}

TEST(CopyStrided, EqualsThePlainDefinition) {
  std::mt19937 random(1);
  auto upto = [&](int n) { return static_cast<int64_t>(random() % n); };
  const int widths[] = {1, 2, 4, 8, 16};
  for (int round = 0; round < 3000; ++round) {
    const int rank = static_cast<int>(upto(5));
    const int width = widths[upto(5)];
    std::vector<int64_t> dims(rank), order(rank);
    for (int64_t& dim : dims) dim = round % 50 == 0 && rank <= 2 ? upto(200) : upto(7);
    std::iota(order.begin(), order.end(), 0);
    const Shape shape = *Shape::Make(dims);
    // Any order of dimensions on each side, with gaps.
    auto strides = [&] {
      std::shuffle(order.begin(), order.end(), random);
      Dims out = StridesOf(shape, *Layout::Make(order), width);
      const int64_t factor = 1 + upto(3);
      if (factor > 1) {
        for (int64_t& stride : out) stride *= factor;
      }
      return out;
    };
    const Dims src_strides = strides(), dst_strides = strides();
    const std::vector<std::byte> src = Pattern(*StridedSize(shape, src_strides, width));
    std::vector<std::byte> got(*StridedSize(shape, dst_strides, width)), want = got;
    CopyStrided(src.data(), src_strides, got.data(), dst_strides, dims, width);
    Reference(src.data(), src_strides, want.data(), dst_strides, dims, width);
    ASSERT_EQ(got, want) << shape.ToString() << " " << DimsToString(src_strides) << " " << DimsToString(dst_strides);
  }
}

TEST(CopyStrided, BroadcastsAZeroStride) {
  const std::vector<std::byte> src = Pattern(3);
  std::vector<std::byte> dst(6);
  CopyStrided(src.data(), {0, 1}, dst.data(), {3, 1}, {2, 3}, 1);
  EXPECT_EQ(0, std::memcmp(dst.data(), src.data(), 3));
  EXPECT_EQ(0, std::memcmp(dst.data() + 3, src.data(), 3));
}

TEST(CopyRegion, EqualsThePlainDefinition) {
  std::mt19937 random(2);
  auto upto = [&](int64_t n) { return static_cast<int64_t>(random() % n); };
  for (int round = 0; round < 3000; ++round) {
    const int rank = static_cast<int>(upto(4));
    std::vector<int64_t> src_dims(rank), dst_dims(rank), src_start(rank), dst_start(rank), size(rank);
    for (int i = 0; i < rank; ++i) {
      src_dims[i] = 1 + upto(6);
      dst_dims[i] = upto(3) == 0 ? src_dims[i] : 1 + upto(6);
      size[i] = upto(3) == 0 ? std::min(src_dims[i], dst_dims[i]) : upto(std::min(src_dims[i], dst_dims[i]) + 1);
      src_start[i] = upto(src_dims[i] - size[i] + 1);
      dst_start[i] = upto(dst_dims[i] - size[i] + 1);
    }
    const Shape src_shape = *Shape::Make(src_dims), dst_shape = *Shape::Make(dst_dims);
    const std::vector<std::byte> src = Pattern(src_shape.num_elements() * 4);
    std::vector<std::byte> got(dst_shape.num_elements() * 4), want = got;
    CopyRegion(src.data(), src_shape, src_start, got.data(), dst_shape, dst_start, size, 4);
    int64_t src_offset = 0, dst_offset = 0;
    const Dims src_strides = RowMajorStrides(src_shape, 4), dst_strides = RowMajorStrides(dst_shape, 4);
    for (int i = 0; i < rank; ++i) {
      src_offset += src_start[i] * src_strides[i];
      dst_offset += dst_start[i] * dst_strides[i];
    }
    Reference(src.data() + src_offset, src_strides, want.data() + dst_offset, dst_strides, size, 4);
    ASSERT_EQ(got, want) << src_shape.ToString() << " " << dst_shape.ToString() << " " << DimsToString(size);
  }
}

}  // namespace
}  // namespace parkway::ifrt
