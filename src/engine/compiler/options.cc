#include "engine/compiler/options.h"

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "proto/ifrt/compile_options.pb.h"

namespace parkway::compiler {
namespace {

// Flags with which XLA would write or read files wherever the compiler runs.
bool NamesFiles(absl::string_view flag) {
  return absl::StrContains(flag, "dump") || absl::StrContains(flag, "load_") || absl::EndsWith(flag, "_path") ||
         absl::EndsWith(flag, "_file") || absl::EndsWith(flag, "_dir") || absl::EndsWith(flag, "_to") ||
         absl::EndsWith(flag, "_from");
}

absl::Status CheckOverrides(const xla::CompileOptionsProto& options) {
  for (const auto& [flag, value] : options.env_option_overrides()) {
    if (NamesFiles(flag)) {
      return absl::UnimplementedError(absl::StrCat("compiler option ", flag,
                                                   " names files of the machine that compiles; give it in XLA_FLAGS to "
                                                   "the proxy instead, whose compilers take it"));
    }
  }
  return absl::OkStatus();
}

absl::Status AssignDevices(xla::ExecutableBuildOptionsProto& build, int num_devices) {
  const int64_t replicas = std::max<int64_t>(build.num_replicas(), 1);
  const int64_t partitions = std::max<int64_t>(build.num_partitions(), 1);
  if (replicas > num_devices || partitions > num_devices || replicas * partitions != num_devices) {
    return absl::InvalidArgumentError(absl::StrCat("a program of ", replicas, " replicas and ", partitions,
                                                   " partitions was given ", num_devices, " devices"));
  }
  build.set_num_replicas(replicas);
  build.set_num_partitions(partitions);
  xla::DeviceAssignmentProto& assignment = *build.mutable_device_assignment();
  assignment.Clear();
  assignment.set_replica_count(static_cast<int32_t>(replicas));
  assignment.set_computation_count(static_cast<int32_t>(partitions));
  for (int64_t partition = 0; partition < partitions; ++partition) {
    auto& column = *assignment.add_computation_devices();
    for (int64_t replica = 0; replica < replicas; ++replica) {
      column.add_replica_device_ids(replica * partitions + partition);
    }
  }
  return absl::OkStatus();
}

std::string SerializeInOrder(const xla::CompileOptionsProto& options) {
  std::string out;
  google::protobuf::io::StringOutputStream stream(&out);
  google::protobuf::io::CodedOutputStream coded(&stream);
  coded.SetSerializationDeterministic(true);
  options.SerializeToCodedStream(&coded);
  coded.Trim();
  return out;
}

}  // namespace

absl::StatusOr<std::string> NormaliseOptions(absl::string_view serialized, int num_devices) {
  xla::CompileOptionsProto options;
  if (!options.ParseFromArray(serialized.data(), static_cast<int>(serialized.size()))) {
    return absl::InvalidArgumentError("the compile options are no xla.CompileOptionsProto");
  }
  PARKWAY_RETURN_IF_ERROR(CheckOverrides(options));
  xla::ExecutableBuildOptionsProto& build = *options.mutable_executable_build_options();
  PARKWAY_RETURN_IF_ERROR(AssignDevices(build, num_devices));
  build.clear_debug_options();
  build.clear_process_index();
  build.clear_process_count();
  build.set_device_ordinal(-1);
  options.set_parameter_is_tupled_arguments(false);
  options.set_compile_portable_executable(false);
  options.set_allow_in_place_mlir_modification(false);
  return SerializeInOrder(options);
}

}  // namespace parkway::compiler
