// Shardings on the client's wire: the five kinds that IFRT registers, and XLA's OpSharding inside one of them. Decoding
// takes anything: counts, products, permutations and sizes are checked before anything is made of them, and a tiling
// given as an iota stays one. Encoding never gives the named form, on which clients abort.
#pragma once

#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "ifrt/sharding.h"
#include "proto/ifrt/ifrt.pb.h"
#include "proto/ifrt/xla_data.pb.h"

namespace parkway::ifrt {

// INVALID_ARGUMENT for what is malformed, UNIMPLEMENTED for dynamic shapes.
absl::StatusOr<ShardingPtr> DecodeSharding(const xla::ifrt::ShardingProto& proto);

// SingleDeviceSharding for one device, HloSharding for several; the opaque and concrete kinds stay what they are.
void EncodeSharding(const Sharding& sharding, xla::ifrt::ShardingProto* proto);

// An OpSharding of one array (no TUPLE), in whatever form, over `devices`: it refers to positions in that list.
absl::StatusOr<ShardingPtr> DecodeOpSharding(const xla::OpSharding& proto, DeviceListPtr devices,
                                             MemoryKind memory = std::nullopt);

// INVALID_ARGUMENT for opaque and concrete shardings of several devices, which have no such form.
absl::StatusOr<xla::OpSharding> EncodeOpSharding(const Sharding& sharding);

// DecodeSharding for a stream of requests, which name the same few shardings again and again: remembers by the bytes of
// the wire form. One thread.
class ShardingCache {
 public:
  absl::StatusOr<ShardingPtr> Decode(const xla::ifrt::ShardingProto& proto);

 private:
  absl::flat_hash_map<std::string, ShardingPtr> entries_;  // by type name and data
  size_t bytes_ = 0;                                       // of the keys
};

}  // namespace parkway::ifrt
