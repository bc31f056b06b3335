#include "manager/slice_type.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "proto/parkway/manager.pb.h"

namespace parkway::manager {
namespace {

using ::testing::HasSubstr;

std::string Parsed(const std::string& name) {
  auto type = ParseSliceType(name);
  return type.ok() ? SliceTypeName(*type) : std::string(type.status().message());
}

TEST(SliceType, HostsAndDevices) {
  EXPECT_EQ(Parsed("cpu:1x2"), "cpu:1x2");
  EXPECT_EQ(Parsed("gpu:16x8"), "gpu:16x8");
}

TEST(SliceType, ChipsOfTpusAreSplitIntoHosts) {
  EXPECT_EQ(Parsed("tpuv5e:2x4"), "tpuv5e:1x8");
  EXPECT_EQ(Parsed("tpuv6e:2x2"), "tpuv6e:1x4");
  EXPECT_EQ(Parsed("tpuv5e:4x4"), "tpuv5e:4x4");
  EXPECT_EQ(Parsed("tpuv4:2x2x2"), "tpuv4:2x4");
  EXPECT_EQ(Parsed("tpuv5:4x4x8_untwisted"), "tpuv5:32x4");
  EXPECT_EQ(Parsed("tpu7x:2x2x1"), "tpu7x:1x4");
}

TEST(SliceType, MalformedNamesAreQuoted) {
  for (const char* name : {"", "cpu", "cpu:", ":1x2", "cpu:1", "cpu:1x2x3", "cpu:0x2", "cpu:-1x2", "cpu:1x",
                           "cpu:1x2:3", "cpu:ax2", "cpu:1000000000x1000000000", "tpuv4:3x3x3", "cpu:1x5000"}) {
    auto type = ParseSliceType(name);
    ASSERT_FALSE(type.ok()) << name;
    EXPECT_EQ(type.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(type.status().message()), HasSubstr(std::string("'") + name + "'"));
  }
}

TEST(SliceType, Lists) {
  auto types = ParseSliceTypes("cpu:1x2,cpu:2x4");
  ASSERT_TRUE(types.ok());
  ASSERT_EQ(types->size(), 2u);
  EXPECT_EQ(SliceTypeName((*types)[1]), "cpu:2x4");
  EXPECT_FALSE(ParseSliceTypes("cpu:1x2,").ok());
  EXPECT_FALSE(ParseSliceTypes("").ok());
}

}  // namespace
}  // namespace parkway::manager
