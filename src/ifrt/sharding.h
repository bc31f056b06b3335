// How an array lies on devices: a device for each shard, a memory kind, and which part of the array each shard is.
// Shardings are immutable and interned: equal ones, from whatever wire form they came, are the same object. Two forms
// of one layout (a list and an iota, say) may still be different objects: Equivalent tells. Any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "ifrt/device_list.h"
#include "ifrt/shape.h"
#include "ifrt/tile_assignment.h"

namespace parkway::ifrt {

class Sharding;
using ShardingPtr = std::shared_ptr<const Sharding>;

// Unset: the default memory of the devices.
using MemoryKind = std::optional<std::string>;

class Sharding {
 public:
  enum class Kind {
    kSingle,        // one device, the whole array; every tiled or replicated sharding on one device is this one
    kReplicated,    // each device has the whole array
    kTiled,         // a grid of tiles
    kMaximal,       // the whole array, of which one device's copy counts
    kManual,        // the program itself knows; shards have the array's shape
    kUnknown,       // like kManual: nobody says
    kUnreduced,     // each device has a summand of the array
    kOpaque,        // nothing is known but the devices
    kConcreteEven,  // all shards have one shape; where they lie is not known
    kConcrete,      // each shard's shape is listed; where they lie is not known
  };
  // What devices that share a tile hold of it: the dimensions at the end of the grid.
  enum class Subgroup { kReplicated, kManual, kUnreduced };
  using Subgroups = absl::InlinedVector<Subgroup, 2>;

  // INVALID_ARGUMENT for a negative id. The others say so where the list is empty.
  static absl::StatusOr<ShardingPtr> SingleDevice(int32_t device, MemoryKind memory = std::nullopt);
  static absl::StatusOr<ShardingPtr> Replicated(DeviceListPtr devices, MemoryKind memory = std::nullopt);
  // `tiles` refers to positions in `devices`; the last subgroups.size() dimensions of its grid are no dimensions of the
  // array. INVALID_ARGUMENT when tiles and devices differ in number.
  static absl::StatusOr<ShardingPtr> Tiled(DeviceListPtr devices, TileAssignment tiles, Subgroups subgroups,
                                           MemoryKind memory = std::nullopt);
  static absl::StatusOr<ShardingPtr> Maximal(DeviceListPtr devices, int64_t position, MemoryKind memory = std::nullopt);
  // kManual, kUnknown, kUnreduced or kOpaque.
  static absl::StatusOr<ShardingPtr> Unplaced(Kind kind, DeviceListPtr devices, MemoryKind memory = std::nullopt);
  static absl::StatusOr<ShardingPtr> ConcreteEven(DeviceListPtr devices, Shape shape, Shape shard_shape,
                                                  bool fully_replicated, MemoryKind memory = std::nullopt);
  static absl::StatusOr<ShardingPtr> Concrete(DeviceListPtr devices, Shape shape, std::vector<Shape> shard_shapes,
                                              MemoryKind memory = std::nullopt);

  Kind kind() const { return kind_; }
  const DeviceListPtr& devices() const { return devices_; }
  const MemoryKind& memory_kind() const { return memory_; }
  int num_shards() const { return devices_->size(); }

  // Every device has the whole array, and each copy counts.
  bool IsFullyReplicated() const;

  // The shape that shards have; with uneven tiles the largest, which is the first one's. INVALID_ARGUMENT when the rank
  // doesn't fit, a concrete sharding is for another shape, or its shards have several shapes.
  absl::StatusOr<Shape> ShardShape(const Shape& shape) const;

  // The shape of one shard: smaller than ShardShape at the end of a dimension that doesn't divide.
  absl::StatusOr<Shape> ShardShape(const Shape& shape, int shard) const;

  // The part of the array that a shard is, 0 <= shard < num_shards(): tiles are ceil(size / tiles) long, the last ones
  // shorter or empty. FAILED_PRECONDITION where the sharding doesn't say.
  absl::StatusOr<Region> ShardRegion(const Shape& shape, int shard) const;

  // The same regions on the same devices, whatever the form, the order of devices or the memory kind.
  bool Equivalent(const Sharding& other, const Shape& shape) const;

  // Equivalent, or each device's shard has the shape that `other` wants there and this one is concrete or the array
  // empty: of a concrete one the client, who put the shards together without saying where they lie, vouches for the
  // rest, and in an empty one there is no rest.
  bool Fits(const Sharding& other, const Shape& shape) const;

  // The same tiling over other devices, as many, and another memory kind.
  absl::StatusOr<ShardingPtr> With(DeviceListPtr devices, MemoryKind memory) const;

  // One shard as an array of its own.
  ShardingPtr ShardOf(int shard) const;

  // kTiled:
  const TileAssignment& tiles() const { return *tiles_; }
  const Subgroups& subgroups() const { return subgroups_; }
  // kMaximal:
  int maximal_position() const { return maximal_position_; }
  // kConcrete, kConcreteEven; shard_shapes has one entry for each shard, or a single one for an even sharding:
  const Shape& concrete_shape() const { return concrete_shape_; }
  absl::Span<const Shape> shard_shapes() const { return shard_shapes_; }

  std::string ToString() const;

  Sharding(const Sharding&) = delete;
  Sharding& operator=(const Sharding&) = delete;

 private:
  struct Fields {
    Kind kind = Kind::kReplicated;
    DeviceListPtr devices;
    MemoryKind memory;
    std::optional<TileAssignment> tiles;
    Subgroups subgroups;
    int maximal_position = 0;
    Shape concrete_shape;
    std::vector<Shape> shard_shapes;
    bool concrete_replicated = false;
  };
  explicit Sharding(Fields fields);
  static absl::StatusOr<ShardingPtr> Intern(Fields fields);
  static std::string Key(const Fields& fields);

  bool whole_array_shards() const {
    return kind_ != Kind::kTiled && kind_ != Kind::kOpaque && kind_ != Kind::kConcrete && kind_ != Kind::kConcreteEven;
  }
  absl::Status CheckShape(const Shape& shape) const;

  const Kind kind_;
  const DeviceListPtr devices_;
  const MemoryKind memory_;
  const std::optional<TileAssignment> tiles_;
  const Subgroups subgroups_;
  const int maximal_position_;
  const Shape concrete_shape_;
  const std::vector<Shape> shard_shapes_;
  const bool concrete_replicated_;
};

}  // namespace parkway::ifrt
