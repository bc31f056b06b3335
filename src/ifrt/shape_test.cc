#include "ifrt/shape.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "base/limits.h"
#include "ifrt/dtype.h"

namespace parkway::ifrt {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(DType, EveryNumberHasANameAndComesBack) {
  int known = 0;
  for (int number = -5; number < 200; ++number) {
    absl::StatusOr<DType> type = DTypeFromNumber(number);
    if (!type.ok()) {
      EXPECT_EQ(type.status().code(), absl::StatusCode::kInvalidArgument);
      continue;
    }
    ++known;
    EXPECT_EQ(static_cast<int>(*type), number);
    EXPECT_EQ(*ParseDType(Name(*type)), *type);
  }
  EXPECT_EQ(known, 35);
}

TEST(DType, Widths) {
  struct Case {
    DType type;
    int bytes;
  };
  for (const Case& c : std::vector<Case>{{DType::kPred, 1},
                                         {DType::kS1, 1},
                                         {DType::kS4, 1},
                                         {DType::kF4E2M1FN, 1},
                                         {DType::kF6E3M2FN, 1},
                                         {DType::kF8E8M0FNU, 1},
                                         {DType::kBF16, 2},
                                         {DType::kF32, 4},
                                         {DType::kC128, 16},
                                         {DType::kString, 0},
                                         {DType::kToken, 0},
                                         {DType::kUnspecified, 0}}) {
    EXPECT_EQ(ByteWidth(c.type), c.bytes) << Name(c.type);
  }
}

TEST(DType, NamesOfXlaAndStableHlo) {
  const std::vector<std::pair<const char*, DType>> cases = {{"f32", DType::kF32},      {"F32", DType::kF32},
                                                            {"bf16", DType::kBF16},    {"i32", DType::kS32},
                                                            {"s32", DType::kS32},      {"ui8", DType::kU8},
                                                            {"u8", DType::kU8},        {"i1", DType::kPred},
                                                            {"pred", DType::kPred},    {"f8E4M3FN", DType::kF8E4M3FN},
                                                            {"c64", DType::kC64},      {"complex<f32>", DType::kC64},
                                                            {"c128", DType::kC128},    {"complex<f64>", DType::kC128},
                                                            {"i4", DType::kS4},        {"ui2", DType::kU2},
                                                            {"string", DType::kString}};
  for (const auto& [name, type] : cases) EXPECT_EQ(*ParseDType(name), type) << name;
  for (const char* bad : {"", "f33", "float", " f32", "unspecified"}) EXPECT_FALSE(ParseDType(bad).ok()) << bad;
}

TEST(Shape, Sizes) {
  struct Case {
    std::vector<int64_t> dims;
    int64_t elements;
  };
  for (const Case& c : std::vector<Case>{{{}, 1}, {{0}, 0}, {{3}, 3}, {{2, 3, 4}, 24}, {{2, 0, 4}, 0}, {{1, 1}, 1}}) {
    absl::StatusOr<Shape> shape = Shape::Make(c.dims);
    ASSERT_TRUE(shape.ok()) << shape.status();
    EXPECT_EQ(shape->num_elements(), c.elements);
    EXPECT_EQ(*shape->ByteSize(DType::kF32), 4 * c.elements);
    EXPECT_EQ(*shape->ByteSize(DType::kS4), c.elements);
  }
}

TEST(Shape, HostileSizesAreErrors) {
  const int64_t big = int64_t{1} << 62;
  for (const std::vector<int64_t>& dims : std::vector<std::vector<int64_t>>{{-1},
                                                                            {big},
                                                                            {big, 0},
                                                                            {0, big},
                                                                            {big, big},
                                                                            {1 << 24, 1 << 24},
                                                                            {INT64_MAX, INT64_MAX, INT64_MAX},
                                                                            {INT64_MIN},
                                                                            std::vector<int64_t>(65, 1)}) {
    absl::StatusOr<Shape> shape = Shape::Make(dims);
    EXPECT_EQ(shape.status().code(), absl::StatusCode::kInvalidArgument) << DimsToString(dims);
  }
  absl::StatusOr<Shape> largest = Shape::Make({limits::kMaxArrayBytes});
  ASSERT_TRUE(largest.ok());
  EXPECT_TRUE(largest->ByteSize(DType::kU8).ok());
  EXPECT_EQ(largest->ByteSize(DType::kC128).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(Shape().ByteSize(DType::kString).status().message()), HasSubstr("no fixed size"));
}

TEST(Region, Intersections) {
  const Region a{{0, 2}, {4, 4}};
  EXPECT_EQ(Intersect(a, Region{{4, 0}, {4, 8}}), std::nullopt);
  std::optional<Region> both = Intersect(a, Region{{3, 0}, {4, 3}});
  ASSERT_TRUE(both.has_value());
  EXPECT_THAT(both->start, ElementsAre(3, 2));
  EXPECT_THAT(both->size, ElementsAre(1, 1));
  EXPECT_EQ(both->ToString(), "[3:4,2:3]");
  EXPECT_TRUE(Intersect(Region{}, Region{}).has_value());  // scalars
  EXPECT_EQ(WholeRegion(*Shape::Make({4, 6})).num_elements(), 24);
}

}  // namespace
}  // namespace parkway::ifrt
