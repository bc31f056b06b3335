#include "ifrt/sharding_wire.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "base/limits.h"
#include "base/status.h"
#include "ifrt/named_sharding_wire.h"
#include "ifrt/type_wire.h"
#include "proto/ifrt/sharding.pb.h"

namespace parkway::ifrt {
namespace {

constexpr absl::string_view kPrefix = "xla::ifrt::";

absl::Status Invalid(absl::string_view text) { return absl::InvalidArgumentError(absl::StrCat("sharding: ", text)); }

template <typename Message>
MemoryKind MemoryOf(const Message& message) {
  if (!message.has_memory_kind()) return std::nullopt;
  return message.memory_kind();
}

absl::StatusOr<ShardingPtr> Decode(const xla::ifrt::SingleDeviceShardingProto& proto) {
  return Sharding::SingleDevice(proto.device_id(), MemoryOf(proto));
}

absl::StatusOr<ShardingPtr> Decode(const xla::ifrt::OpaqueShardingProto& proto) {
  PARKWAY_ASSIGN_OR_RETURN(DeviceListPtr devices, DecodeDeviceList(proto.devices()));
  return Sharding::Unplaced(Sharding::Kind::kOpaque, std::move(devices), MemoryOf(proto));
}

absl::StatusOr<ShardingPtr> Decode(const xla::ifrt::ConcreteEvenShardingProto& proto) {
  PARKWAY_ASSIGN_OR_RETURN(DeviceListPtr devices, DecodeDeviceList(proto.devices()));
  PARKWAY_ASSIGN_OR_RETURN(Shape shape, DecodeShape(proto.shape()));
  PARKWAY_ASSIGN_OR_RETURN(Shape shard, DecodeShape(proto.shard_shape()));
  return Sharding::ConcreteEven(std::move(devices), std::move(shape), std::move(shard), proto.is_fully_replicated(),
                                MemoryOf(proto));
}

absl::StatusOr<ShardingPtr> Decode(const xla::ifrt::ConcreteShardingProto& proto) {
  if (proto.has_dynamic_shape() || proto.shard_dynamic_shapes_size() > 0) {
    return absl::UnimplementedError("sharding: Parkway has no arrays of dynamic shape");
  }
  PARKWAY_ASSIGN_OR_RETURN(DeviceListPtr devices, DecodeDeviceList(proto.devices()));
  PARKWAY_ASSIGN_OR_RETURN(Shape shape, DecodeShape(proto.shape()));
  std::vector<Shape> shards;
  for (const xla::ifrt::ShapeProto& shard : proto.shard_shapes()) {
    PARKWAY_ASSIGN_OR_RETURN(shards.emplace_back(), DecodeShape(shard));
  }
  return Sharding::Concrete(std::move(devices), std::move(shape), std::move(shards), MemoryOf(proto));
}

absl::StatusOr<ShardingPtr> Decode(const xla::ifrt::HloShardingProto& proto) {
  PARKWAY_ASSIGN_OR_RETURN(DeviceListPtr devices, DecodeDeviceList(proto.devices()));
  return DecodeOpSharding(proto.xla_op_sharding(), std::move(devices), MemoryOf(proto));
}

template <typename Message>
absl::StatusOr<ShardingPtr> ParseAndDecode(const xla::ifrt::Serialized& serialized) {
  Message message;
  if (!message.ParseFromString(serialized.data())) {
    return Invalid(absl::StrCat("the data of a ", serialized.type_name(), " is no ", message.GetTypeName()));
  }
  return Decode(message);
}

absl::StatusOr<Sharding::Subgroups> DecodeSubgroups(const xla::OpSharding& proto) {
  Sharding::Subgroups groups;
  if (proto.last_tile_dims_size() > limits::kMaxTileRank) {
    return Invalid(absl::StrCat(proto.last_tile_dims_size(), " last tile dimensions"));
  }
  for (int type : proto.last_tile_dims()) {
    switch (type) {
      case xla::OpSharding::REPLICATED:
        groups.push_back(Sharding::Subgroup::kReplicated);
        break;
      case xla::OpSharding::MANUAL:
        groups.push_back(Sharding::Subgroup::kManual);
        break;
      case xla::OpSharding::UNREDUCED:
        groups.push_back(Sharding::Subgroup::kUnreduced);
        break;
      default:
        return Invalid(absl::StrCat("the last tile dimensions have the type number ", type,
                                    ", expected replicated, manual or unreduced"));
    }
  }
  if (groups.empty() && proto.replicate_on_last_tile_dim()) groups.push_back(Sharding::Subgroup::kReplicated);
  return groups;
}

absl::StatusOr<TileAssignment> DecodeTiles(const xla::OpSharding& proto) {
  const auto& grid = proto.tile_assignment_dimensions();
  const bool iota = proto.iota_reshape_dims_size() > 0 || proto.iota_transpose_perm_size() > 0;
  if (!iota) return TileAssignment::Listed(grid, proto.tile_assignment_devices());
  if (proto.tile_assignment_devices_size() > 0) return Invalid("its tiles are given twice, as a list and as an iota");
  return TileAssignment::Iota(grid, proto.iota_reshape_dims(), proto.iota_transpose_perm());
}

void EncodeTiles(const Sharding& sharding, xla::OpSharding* proto) {
  const TileAssignment& tiles = sharding.tiles();
  proto->set_type(xla::OpSharding::OTHER);
  proto->mutable_tile_assignment_dimensions()->Assign(tiles.grid().begin(), tiles.grid().end());
  if (tiles.is_iota()) {
    proto->mutable_iota_reshape_dims()->Assign(tiles.reshape().begin(), tiles.reshape().end());
    proto->mutable_iota_transpose_perm()->Assign(tiles.perm().begin(), tiles.perm().end());
  } else {
    proto->mutable_tile_assignment_devices()->Assign(tiles.positions().begin(), tiles.positions().end());
  }
  const Sharding::Subgroups& groups = sharding.subgroups();
  if (groups.size() == 1 && groups[0] == Sharding::Subgroup::kReplicated) {
    proto->set_replicate_on_last_tile_dim(true);
    return;
  }
  for (Sharding::Subgroup group : groups) {
    proto->add_last_tile_dims(group == Sharding::Subgroup::kReplicated ? xla::OpSharding::REPLICATED
                              : group == Sharding::Subgroup::kManual   ? xla::OpSharding::MANUAL
                                                                       : xla::OpSharding::UNREDUCED);
  }
}

// Devices and memory kind are fields of all kinds but one.
template <typename Message>
Message Start(const Sharding& sharding) {
  Message message;
  EncodeDeviceList(*sharding.devices(), message.mutable_devices());
  if (sharding.memory_kind()) message.set_memory_kind(*sharding.memory_kind());
  return message;
}

template <typename Message>
void Wrap(const Message& message, absl::string_view type, xla::ifrt::ShardingProto* proto) {
  xla::ifrt::Serialized* serialized = proto->mutable_serialized_sharding();
  serialized->set_type_name(absl::StrCat(kPrefix, type));
  message.SerializeToString(serialized->mutable_data());
}

xla::ifrt::ConcreteShardingProto Concrete(const Sharding& sharding) {
  auto message = Start<xla::ifrt::ConcreteShardingProto>(sharding);
  EncodeShape(sharding.concrete_shape(), message.mutable_shape());
  for (const Shape& shard : sharding.shard_shapes()) EncodeShape(shard, message.add_shard_shapes());
  return message;
}

xla::ifrt::ConcreteEvenShardingProto ConcreteEven(const Sharding& sharding) {
  auto message = Start<xla::ifrt::ConcreteEvenShardingProto>(sharding);
  EncodeShape(sharding.concrete_shape(), message.mutable_shape());
  EncodeShape(sharding.shard_shapes()[0], message.mutable_shard_shape());
  message.set_is_fully_replicated(sharding.IsFullyReplicated());
  return message;
}

}  // namespace

absl::StatusOr<ShardingPtr> DecodeSharding(const xla::ifrt::ShardingProto& proto) {
  const xla::ifrt::Serialized& serialized = proto.serialized_sharding();
  absl::string_view type = serialized.type_name();
  if (absl::ConsumePrefix(&type, kPrefix)) {
    if (type == "HloSharding") return ParseAndDecode<xla::ifrt::HloShardingProto>(serialized);
    if (type == "SingleDeviceSharding") return ParseAndDecode<xla::ifrt::SingleDeviceShardingProto>(serialized);
    if (type == "ConcreteEvenSharding") return ParseAndDecode<xla::ifrt::ConcreteEvenShardingProto>(serialized);
    if (type == "ConcreteSharding") return ParseAndDecode<xla::ifrt::ConcreteShardingProto>(serialized);
    if (type == "OpaqueSharding") return ParseAndDecode<xla::ifrt::OpaqueShardingProto>(serialized);
  }
  return Invalid(absl::StrCat("\"", serialized.type_name().substr(0, 64), "\" is no kind of sharding"));
}

void EncodeSharding(const Sharding& sharding, xla::ifrt::ShardingProto* proto) {
  switch (sharding.kind()) {
    case Sharding::Kind::kSingle: {
      xla::ifrt::SingleDeviceShardingProto message;
      message.set_device_id(sharding.devices()->id(0));
      if (sharding.memory_kind()) message.set_memory_kind(*sharding.memory_kind());
      return Wrap(message, "SingleDeviceSharding", proto);
    }
    case Sharding::Kind::kOpaque:
      return Wrap(Start<xla::ifrt::OpaqueShardingProto>(sharding), "OpaqueSharding", proto);
    case Sharding::Kind::kConcrete:
      return Wrap(Concrete(sharding), "ConcreteSharding", proto);
    case Sharding::Kind::kConcreteEven:
      return Wrap(ConcreteEven(sharding), "ConcreteEvenSharding", proto);
    default: {
      auto message = Start<xla::ifrt::HloShardingProto>(sharding);
      *message.mutable_xla_op_sharding() = *EncodeOpSharding(sharding);  // all other kinds have that form
      return Wrap(message, "HloSharding", proto);
    }
  }
}

absl::StatusOr<ShardingPtr> DecodeOpSharding(const xla::OpSharding& proto, DeviceListPtr devices, MemoryKind memory) {
  if (proto.has_named_sharding()) {
    PARKWAY_ASSIGN_OR_RETURN(xla::OpSharding tiled, NamedToTiled(proto.named_sharding(), devices->size()));
    return DecodeOpSharding(tiled, std::move(devices), std::move(memory));
  }
  switch (proto.type()) {
    case xla::OpSharding::REPLICATED:
      return Sharding::Replicated(std::move(devices), std::move(memory));
    case xla::OpSharding::MAXIMAL:
      if (proto.tile_assignment_devices_size() != 1) return Invalid("a maximal one that names not just one device");
      return Sharding::Maximal(std::move(devices), proto.tile_assignment_devices(0), std::move(memory));
    case xla::OpSharding::MANUAL:
      return Sharding::Unplaced(Sharding::Kind::kManual, std::move(devices), std::move(memory));
    case xla::OpSharding::UNKNOWN:
      return Sharding::Unplaced(Sharding::Kind::kUnknown, std::move(devices), std::move(memory));
    case xla::OpSharding::UNREDUCED:
      return Sharding::Unplaced(Sharding::Kind::kUnreduced, std::move(devices), std::move(memory));
    case xla::OpSharding::OTHER: {
      PARKWAY_ASSIGN_OR_RETURN(TileAssignment tiles, DecodeTiles(proto));
      PARKWAY_ASSIGN_OR_RETURN(Sharding::Subgroups groups, DecodeSubgroups(proto));
      return Sharding::Tiled(std::move(devices), std::move(tiles), std::move(groups), std::move(memory));
    }
    case xla::OpSharding::TUPLE:
      return Invalid("a tuple of shardings for a single array");
    default:
      return Invalid(absl::StrCat("type number ", proto.type(), " is no kind of OpSharding"));
  }
}

absl::StatusOr<xla::OpSharding> EncodeOpSharding(const Sharding& sharding) {
  xla::OpSharding proto;
  switch (sharding.kind()) {
    case Sharding::Kind::kSingle:
    case Sharding::Kind::kReplicated:
      proto.set_type(xla::OpSharding::REPLICATED);
      return proto;
    case Sharding::Kind::kTiled:
      EncodeTiles(sharding, &proto);
      return proto;
    case Sharding::Kind::kMaximal:
      proto.set_type(xla::OpSharding::MAXIMAL);
      proto.add_tile_assignment_dimensions(1);
      proto.add_tile_assignment_devices(sharding.maximal_position());
      return proto;
    case Sharding::Kind::kManual:
      proto.set_type(xla::OpSharding::MANUAL);
      return proto;
    case Sharding::Kind::kUnknown:
      proto.set_type(xla::OpSharding::UNKNOWN);
      return proto;
    case Sharding::Kind::kUnreduced:
      proto.set_type(xla::OpSharding::UNREDUCED);
      return proto;
    default:
      if (sharding.num_shards() == 1) return proto;  // REPLICATED
      return Invalid(absl::StrCat("a sharding ", sharding.ToString(), " has no form as an OpSharding"));
  }
}

absl::StatusOr<ShardingPtr> ShardingCache::Decode(const xla::ifrt::ShardingProto& proto) {
  const xla::ifrt::Serialized& serialized = proto.serialized_sharding();
  std::string key = absl::StrCat(serialized.type_name(), "\n", serialized.data());
  if (auto it = entries_.find(key); it != entries_.end()) return it->second;
  PARKWAY_ASSIGN_OR_RETURN(ShardingPtr sharding, DecodeSharding(proto));
  bytes_ += key.size();
  if (bytes_ > limits::kShardingCacheBytes) {
    entries_.clear();
    bytes_ = key.size();
  }
  entries_.emplace(std::move(key), sharding);
  return sharding;
}

}  // namespace parkway::ifrt
