#include "engine/compiler/options.h"

#include "gmock/gmock.h"
#include "proto/ifrt/compile_options.pb.h"

namespace parkway::compiler {
namespace {

using ::testing::ElementsAre;

xla::CompileOptionsProto Options(int replicas, int partitions) {
  xla::CompileOptionsProto options;
  auto& build = *options.mutable_executable_build_options();
  build.set_num_replicas(replicas);
  build.set_num_partitions(partitions);
  return options;
}

TEST(NormaliseOptions, NumbersDevicesByReplicaThenPartition) {
  auto normal = NormaliseOptions(Options(2, 3).SerializeAsString(), 6);
  ASSERT_TRUE(normal.ok()) << normal.status();
  xla::CompileOptionsProto options;
  ASSERT_TRUE(options.ParseFromString(*normal));
  const auto& assignment = options.executable_build_options().device_assignment();
  EXPECT_EQ(assignment.replica_count(), 2);
  ASSERT_EQ(assignment.computation_count(), 3);
  EXPECT_THAT(assignment.computation_devices(0).replica_device_ids(), ElementsAre(0, 3));
  EXPECT_THAT(assignment.computation_devices(2).replica_device_ids(), ElementsAre(2, 5));
}

TEST(NormaliseOptions, WhatBelongsToTheClientsMachineGoes) {
  xla::CompileOptionsProto options = Options(1, 1);
  auto plain = NormaliseOptions(options.SerializeAsString(), 1);
  auto& build = *options.mutable_executable_build_options();
  build.mutable_debug_options();
  build.set_process_index(3);
  build.set_device_ordinal(5);
  build.mutable_device_assignment()->add_computation_devices()->add_replica_device_ids(77);
  options.set_compile_portable_executable(true);
  EXPECT_EQ(*NormaliseOptions(options.SerializeAsString(), 1), *plain);
  EXPECT_EQ(*NormaliseOptions("", 1), *plain) << "one device is the default";
  build.set_use_shardy_partitioner(true);
  EXPECT_NE(*NormaliseOptions(options.SerializeAsString(), 1), *plain);
}

TEST(NormaliseOptions, RefusesWhatDoesNotFit) {
  auto code = [](const xla::CompileOptionsProto& options, int devices) {
    return NormaliseOptions(options.SerializeAsString(), devices).status().code();
  };
  EXPECT_EQ(code(Options(2, 2), 3), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code(Options(1, 1), 0), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code(Options(1, 1), -1), absl::StatusCode::kInvalidArgument);
  xla::CompileOptionsProto huge = Options(1, 1);
  huge.mutable_executable_build_options()->set_num_replicas(int64_t{1} << 62);
  huge.mutable_executable_build_options()->set_num_partitions(4);
  EXPECT_EQ(code(huge, 4), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(NormaliseOptions("\xff\xff", 1).status().code(), absl::StatusCode::kInvalidArgument);
  xla::CompileOptionsProto dump = Options(1, 1);
  (*dump.mutable_env_option_overrides())["xla_dump_to"].set_string_field("/etc");
  EXPECT_EQ(code(dump, 1), absl::StatusCode::kUnimplemented);
}

}  // namespace
}  // namespace parkway::compiler
