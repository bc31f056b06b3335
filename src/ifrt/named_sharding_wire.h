// Shardings by mesh axes (NamedShardingProto, the "V3" form), and tuples, in terms of tiles, which all clients
// understand.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "proto/ifrt/xla_data.pb.h"

namespace parkway::ifrt {

// The same sharding as tiles: each dimension's axes make its tiles, the axes that are left the copies, manual and
// unreduced axes subgroups of their kind at the end of the grid. INVALID_ARGUMENT for axes that are not in the mesh,
// used twice or cut in parts that don't fit, and for a mesh of other than `num_devices` devices (0: any number).
absl::StatusOr<xla::OpSharding> NamedToTiled(const xla::NamedShardingProto& named, int num_devices = 0);

// The same sharding without the named form anywhere in it.
absl::StatusOr<xla::OpSharding> WithoutNamed(const xla::OpSharding& sharding);

// One sharding for each of `num_leaves` arrays, none of them named: the leaves of a tuple in order, or the sharding
// itself for each leaf where it is no tuple. INVALID_ARGUMENT when a tuple has another number of leaves.
absl::StatusOr<std::vector<xla::OpSharding>> FlattenTuple(const xla::OpSharding& sharding, int num_leaves);

}  // namespace parkway::ifrt
