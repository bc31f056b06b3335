#include <gmock/gmock.h>
#include <google/protobuf/stubs/logging.h>
#include <google/protobuf/text_format.h>
#include <gtest/gtest.h>

#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "base/limits.h"
#include "ifrt/attributes_wire.h"
#include "ifrt/named_sharding_wire.h"
#include "ifrt/remap_wire.h"
#include "ifrt/sharding_wire.h"
#include "ifrt/type_wire.h"
#include "proto/ifrt/sharding.pb.h"

namespace parkway::ifrt {
namespace {

using ::testing::HasSubstr;
using Kind = Sharding::Kind;

template <typename Message>
Message Text(const std::string& text) {
  Message message;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &message)) << text;
  return message;
}

template <typename Message>
xla::ifrt::ShardingProto Wrap(const std::string& type, const std::string& text) {
  xla::ifrt::ShardingProto proto;
  proto.mutable_serialized_sharding()->set_type_name("xla::ifrt::" + type);
  proto.mutable_serialized_sharding()->set_data(Text<Message>(text).SerializeAsString());
  return proto;
}
xla::ifrt::ShardingProto Hlo(const std::string& text) { return Wrap<xla::ifrt::HloShardingProto>("HloSharding", text); }

DeviceListPtr Devices(int n) {
  std::vector<int32_t> ids(n);
  std::iota(ids.begin(), ids.end(), 0);
  return *DeviceList::Make(ids);
}
Shape S(std::vector<int64_t> dims) { return *Shape::Make(dims); }

std::string Regions(const Sharding& sharding, const Shape& shape) {
  std::string out;
  for (int i = 0; i < sharding.num_shards(); ++i) {
    absl::StatusOr<Region> region = sharding.ShardRegion(shape, i);
    out += (i > 0 ? " " : "") + (region.ok() ? region->ToString() : region.status().ToString());
  }
  return out;
}

// ---- types -------------------------------------------------------------------------------------------------------

TEST(TypeWire, DTypes) {
  for (int number = 0; number < 120; ++number) {
    absl::StatusOr<DType> type = DTypeFromNumber(number);
    if (!type.ok()) continue;
    xla::ifrt::DTypeProto proto;
    EncodeDType(*type, &proto);
    EXPECT_EQ(*DecodeDType(proto), *type);
  }
  EXPECT_FALSE(DecodeDType(xla::ifrt::DTypeProto()).ok());
}

TEST(TypeWire, Layouts) {
  auto pjrt = [](const std::string& text) {
    xla::ifrt::LayoutProto proto;
    proto.mutable_serialized_layout()->set_type_name("xla::ifrt::PjRtLayout");
    proto.mutable_serialized_layout()->set_data(Text<xla::ifrt::PjRtLayoutProto>(text).SerializeAsString());
    return proto;
  };
  EXPECT_EQ(*DecodeLayout(xla::ifrt::LayoutProto(), 2), std::nullopt);
  EXPECT_EQ(*DecodeLayout(pjrt(""), 2), std::nullopt);
  EXPECT_EQ((*DecodeLayout(pjrt("xla_layout { minor_to_major: [0, 1] tail_padding_alignment_in_elements: 1 }"), 2))
                ->ToString(),
            "{0,1}");
  EXPECT_FALSE(DecodeLayout(pjrt("xla_layout { minor_to_major: [0, 1] }"), 3).ok());
  EXPECT_FALSE(DecodeLayout(pjrt("xla_layout { minor_to_major: [1, 1] }"), 2).ok());
  EXPECT_EQ(DecodeLayout(pjrt("xla_layout { minor_to_major: [1, 0] tiles { dimensions: 8 } }"), 2).status().code(),
            absl::StatusCode::kUnimplemented);
  xla::ifrt::LayoutProto compact;
  compact.mutable_serialized_layout()->set_type_name("xla::ifrt::CompactLayout");
  compact.mutable_serialized_layout()->set_data(
      Text<xla::ifrt::CompactLayoutProto>("major_to_minor: [0, 2, 1]").SerializeAsString());
  EXPECT_EQ((*DecodeLayout(compact, 3))->ToString(), "{1,2,0}");
  compact.mutable_serialized_layout()->set_type_name("xla::ifrt::Other");
  EXPECT_FALSE(DecodeLayout(compact, 3).ok());
  xla::LayoutProto encoded;
  EncodeXlaLayout(Layout::RowMajor(3), &encoded);
  EXPECT_EQ(*DecodeXlaLayout(encoded), Layout::RowMajor(3));
}

TEST(TypeWire, ArraySpecsComeBack) {
  ArraySpec spec{DType::kBF16, S({4, 6}), *Sharding::Replicated(Devices(2), "pinned_host"), Layout::RowMajor(2)};
  xla::ifrt::ArraySpecProto proto;
  EncodeArraySpec(spec, &proto);
  EXPECT_EQ(proto.layout(), "{1,0}");
  absl::StatusOr<ArraySpec> back = DecodeArraySpec(proto);
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(back->dtype, spec.dtype);
  EXPECT_EQ(back->shape, spec.shape);
  EXPECT_EQ(back->sharding, spec.sharding);
  EXPECT_EQ(back->layout, spec.layout);
  proto.set_layout("{0}");
  EXPECT_EQ(DecodeArraySpec(proto).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(AttributesWire, AllKinds) {
  const Attributes attributes = {{"name", std::string("x\xff")},
                                 {"flag", true},
                                 {"slice_index", int64_t{3}},
                                 {"coords", std::vector<int64_t>{0, -1, 2}},
                                 {"flops", 1.5f}};
  EXPECT_EQ(*DecodeAttributes(EncodeAttributes(attributes)), attributes);
  xla::ifrt::AttributeMapProto empty;
  (*empty.mutable_attributes())["a"];
  EXPECT_EQ(DecodeAttributes(empty).status().code(), absl::StatusCode::kInvalidArgument);
}

// ---- shardings ---------------------------------------------------------------------------------------------------

TEST(ShardingWire, DecodesAllKinds) {
  struct Case {
    xla::ifrt::ShardingProto proto;
    ShardingPtr want;
  };
  using xla::ifrt::ConcreteEvenShardingProto;
  using xla::ifrt::ConcreteShardingProto;
  const std::vector<Case> cases = {
      {Hlo("devices { device_ids: [7] } xla_op_sharding {}"), *Sharding::SingleDevice(7)},
      {Hlo("devices { device_ids: [7] } memory_kind: 'pinned_host'"), *Sharding::SingleDevice(7, "pinned_host")},
      {Hlo("devices { device_ids: [0, 1] } xla_op_sharding { type: REPLICATED }"), *Sharding::Replicated(Devices(2))},
      {Hlo("devices { device_ids: [0, 1, 2, 3] } xla_op_sharding { type: OTHER tile_assignment_dimensions: [2, 2] "
           "iota_reshape_dims: [2, 2] iota_transpose_perm: [1, 0] }"),
       *Sharding::Tiled(Devices(4), *TileAssignment::Iota({2, 2}, {2, 2}, {1, 0}), {})},
      {Hlo("devices { device_ids: [0, 1, 2, 3] } xla_op_sharding { type: OTHER tile_assignment_dimensions: [2, 2] "
           "tile_assignment_devices: [0, 2, 1, 3] replicate_on_last_tile_dim: true }"),
       *Sharding::Tiled(Devices(4), *TileAssignment::Listed({2, 2}, {0, 2, 1, 3}), {Sharding::Subgroup::kReplicated})},
      {Hlo("devices { device_ids: [0, 1, 2, 3] } xla_op_sharding { type: OTHER tile_assignment_dimensions: [1, 2, 2] "
           "tile_assignment_devices: [0, 2, 1, 3] last_tile_dims: [MANUAL, REPLICATED] }"),
       *Sharding::Tiled(Devices(4), *TileAssignment::Listed({1, 2, 2}, {0, 2, 1, 3}),
                        {Sharding::Subgroup::kManual, Sharding::Subgroup::kReplicated})},
      {Hlo("devices { device_ids: [0, 1] } xla_op_sharding { type: MAXIMAL tile_assignment_dimensions: 1 "
           "tile_assignment_devices: 1 }"),
       *Sharding::Maximal(Devices(2), 1)},
      {Hlo("devices { device_ids: [0, 1] } xla_op_sharding { type: MANUAL }"),
       *Sharding::Unplaced(Kind::kManual, Devices(2))},
      {Hlo("devices { device_ids: [0, 1] } xla_op_sharding { type: UNKNOWN }"),
       *Sharding::Unplaced(Kind::kUnknown, Devices(2))},
      {Hlo("devices { device_ids: [0, 1] } xla_op_sharding { type: UNREDUCED }"),
       *Sharding::Unplaced(Kind::kUnreduced, Devices(2))},
      {Wrap<xla::ifrt::SingleDeviceShardingProto>("SingleDeviceSharding", "device_id: 3 memory_kind: 'device'"),
       *Sharding::SingleDevice(3, "device")},
      {Wrap<xla::ifrt::OpaqueShardingProto>("OpaqueSharding", "devices { device_ids: [0, 1] }"),
       *Sharding::Unplaced(Kind::kOpaque, Devices(2))},
      {Wrap<ConcreteEvenShardingProto>(
           "ConcreteEvenSharding",
           "devices { device_ids: [0, 1] } shape { dims: 4 } shard_shape { dims: 2 } is_fully_replicated: false"),
       *Sharding::ConcreteEven(Devices(2), S({4}), S({2}), false)},
      {Wrap<ConcreteShardingProto>(
           "ConcreteSharding",
           "devices { device_ids: [0, 1] } shape { dims: 4 } shard_shapes { dims: 1 } shard_shapes { dims: 3 }"),
       *Sharding::Concrete(Devices(2), S({4}), {S({1}), S({3})})},
  };
  ShardingCache cache;
  for (const Case& c : cases) {
    absl::StatusOr<ShardingPtr> sharding = DecodeSharding(c.proto);
    ASSERT_TRUE(sharding.ok()) << sharding.status() << c.want->ToString();
    EXPECT_EQ(*sharding, c.want) << (*sharding)->ToString() << " is not " << c.want->ToString();
    EXPECT_EQ(*cache.Decode(c.proto), c.want);
    EXPECT_EQ(*cache.Decode(c.proto), c.want);
    // And what we send comes back as the same.
    xla::ifrt::ShardingProto encoded;
    EncodeSharding(**sharding, &encoded);
    absl::StatusOr<ShardingPtr> again = DecodeSharding(encoded);
    ASSERT_TRUE(again.ok()) << again.status();
    EXPECT_EQ(*again, c.want) << encoded.DebugString();
  }
}

TEST(ShardingWire, HostileOnesAreErrors) {
  const std::string four = "devices { device_ids: [0, 1, 2, 3] } xla_op_sharding { type: OTHER ";
  std::string many = "devices { device_ids: [0, 1, 2, 3] } xla_op_sharding { type: OTHER ";
  for (int i = 0; i < 1000; ++i) many += "tile_assignment_dimensions: 1 ";
  const std::vector<std::string> bad = {
      "",
      "devices { device_ids: [-1] }",
      "devices { device_ids: [1, 1] }",
      "devices { device_ids: [0, 1] } xla_op_sharding { type: MAXIMAL }",
      "devices { device_ids: [0, 1] } xla_op_sharding { type: MAXIMAL tile_assignment_devices: 2 }",
      "devices { device_ids: [0, 1] } xla_op_sharding { type: MAXIMAL tile_assignment_devices: -1 }",
      "devices { device_ids: [0, 1] } xla_op_sharding { type: TUPLE }",
      four + "}",
      four + "tile_assignment_dimensions: 4 }",
      four + "tile_assignment_dimensions: 0 }",
      four + "tile_assignment_dimensions: [-2, -2] tile_assignment_devices: [0, 1, 2, 3] }",
      four + "tile_assignment_dimensions: 4 tile_assignment_devices: [0, 1, 2] }",
      four + "tile_assignment_dimensions: 4 tile_assignment_devices: [0, 1, 2, 4] }",
      four + "tile_assignment_dimensions: 4 tile_assignment_devices: [0, 1, 2, 9223372036854775807] }",
      four + "tile_assignment_dimensions: 4 tile_assignment_devices: [0, 1, 2, 2] }",
      four + "tile_assignment_dimensions: 4 iota_reshape_dims: 4 }",
      four + "tile_assignment_dimensions: 4 iota_transpose_perm: 0 }",
      four + "tile_assignment_dimensions: 4 iota_reshape_dims: 4 iota_transpose_perm: 1 }",
      four + "tile_assignment_dimensions: 4 iota_reshape_dims: 4 iota_transpose_perm: -1 }",
      four + "tile_assignment_dimensions: 4 iota_reshape_dims: [2, 2] iota_transpose_perm: [0, 0] }",
      four + "tile_assignment_dimensions: 4 iota_reshape_dims: 4 iota_transpose_perm: 0 tile_assignment_devices: 0 }",
      four + "tile_assignment_dimensions: 8 iota_reshape_dims: 8 iota_transpose_perm: 0 }",
      four +
          "tile_assignment_dimensions: [4611686018427387904, 4] iota_reshape_dims: [4611686018427387904, 4] "
          "iota_transpose_perm: [0, 1] }",
      four + "tile_assignment_dimensions: 4 iota_reshape_dims: [4611686018427387904, 4] iota_transpose_perm: [0, 1] }",
      four +
          "tile_assignment_dimensions: 4 iota_reshape_dims: 4 iota_transpose_perm: 0 last_tile_dims: [MANUAL, "
          "REPLICATED] }",
      four + "tile_assignment_dimensions: 4 iota_reshape_dims: 4 iota_transpose_perm: 0 last_tile_dims: [TUPLE] }",
      four + "named_sharding { mesh { axes { size: 4 } } dim_shardings { axes { mesh_axis_index: 1 } } } }",
      four + "named_sharding { mesh { axes { size: 8 } } dim_shardings { axes { mesh_axis_index: 0 } } } }",
      many + "}"};
  for (const std::string& text : bad) {
    absl::StatusOr<ShardingPtr> sharding = DecodeSharding(Hlo(text));
    EXPECT_EQ(sharding.status().code(), absl::StatusCode::kInvalidArgument) << text;
  }
  xla::ifrt::ShardingProto proto = Hlo("devices { device_ids: [0] }");
  proto.mutable_serialized_sharding()->set_type_name("xla::ifrt::Nothing");
  EXPECT_THAT(std::string(DecodeSharding(proto).status().message()), HasSubstr("Nothing"));
  proto.mutable_serialized_sharding()->set_type_name("");
  EXPECT_FALSE(DecodeSharding(proto).ok());
  proto.mutable_serialized_sharding()->set_type_name("xla::ifrt::HloSharding");
  proto.mutable_serialized_sharding()->set_data("\x0a\xff\xff\xff\xff");
  EXPECT_EQ(DecodeSharding(proto).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(DecodeSharding(Wrap<xla::ifrt::ConcreteShardingProto>(
                               "ConcreteSharding", "devices { device_ids: [0] } dynamic_shape { shape { dims: 4 } }"))
                .status()
                .code(),
            absl::StatusCode::kUnimplemented);
  EXPECT_FALSE(
      DecodeSharding(Wrap<xla::ifrt::ConcreteEvenShardingProto>("ConcreteEvenSharding",
                                                                "devices { device_ids: [0, 1] } shape { dims: "
                                                                "4611686018427387904 } shard_shape { dims: 1 }"))
          .ok());
}

TEST(ShardingWire, RandomBytesNeverCrash) {
  google::protobuf::LogSilencer quiet;
  std::mt19937 random(7);
  const std::string seed =
      Hlo("devices { device_ids: [0, 1, 2, 3] } memory_kind: 'device' xla_op_sharding { type: OTHER "
          "tile_assignment_dimensions: [2, 2] iota_reshape_dims: [2, 2] iota_transpose_perm: [1, 0] named_sharding { "
          "mesh { axes { name: 'x' size: 4 } } dim_shardings { axes { mesh_axis_index: 0 sub_axis_info { pre_size: 1 "
          "size: 2 } } } } }")
          .serialized_sharding()
          .data();
  int valid = 0;
  for (int round = 0; round < 20000; ++round) {
    std::string data = seed;
    for (int flips = 1 + static_cast<int>(random() % 4); flips > 0; --flips) {
      data[random() % data.size()] = static_cast<char>(random());
    }
    xla::ifrt::ShardingProto proto;
    proto.mutable_serialized_sharding()->set_type_name("xla::ifrt::HloSharding");
    proto.mutable_serialized_sharding()->set_data(data);
    absl::StatusOr<ShardingPtr> sharding = DecodeSharding(proto);
    if (!sharding.ok()) continue;
    ++valid;
    for (int i = 0; i < (*sharding)->num_shards(); ++i) (*sharding)->ShardRegion(S({5}), i).IgnoreError();
    xla::ifrt::ShardingProto encoded;
    EncodeSharding(**sharding, &encoded);
    EXPECT_EQ(*DecodeSharding(encoded), *sharding);
  }
  EXPECT_GT(valid, 100);
}

// ---- named shardings ---------------------------------------------------------------------------------------------

// The definition, device by device: each axis of the mesh gives every device a coordinate; a dimension's tile is the
// number that the coordinates of its axes make, major first.
std::string RegionsByDefinition(const xla::NamedShardingProto& named, const Shape& shape) {
  std::vector<int64_t> sizes;
  int64_t n = 1;
  for (const auto& axis : named.mesh().axes()) {
    sizes.push_back(axis.size());
    n *= axis.size();
  }
  std::vector<std::string> regions(n);
  for (int64_t i = 0; i < n; ++i) {
    std::vector<int64_t> at(sizes.size());
    for (int64_t rest = i, a = static_cast<int64_t>(sizes.size()) - 1; a >= 0; --a) {
      at[a] = rest % sizes[a];
      rest /= sizes[a];
    }
    Region region;
    for (int d = 0; d < shape.rank(); ++d) {
      int64_t tile = 0, tiles = 1;
      for (const auto& ref : named.dim_shardings(d).axes()) {
        const int64_t size = sizes[ref.mesh_axis_index()];
        const int64_t pre = ref.has_sub_axis_info() ? ref.sub_axis_info().pre_size() : 1;
        const int64_t part = ref.has_sub_axis_info() ? ref.sub_axis_info().size() : size;
        tile = tile * part + at[ref.mesh_axis_index()] / (size / pre / part) % part;
        tiles *= part;
      }
      const int64_t length = (shape.dim(d) + tiles - 1) / tiles;
      region.start.push_back(std::min(tile * length, shape.dim(d)));
      region.size.push_back(std::min(length, shape.dim(d) - region.start.back()));
    }
    const int64_t device = named.mesh().device_ids_size() > 0 ? named.mesh().device_ids(static_cast<int>(i)) : i;
    regions[device] = region.ToString();
  }
  std::string out;
  for (const std::string& region : regions) out += (out.empty() ? "" : " ") + region;
  return out;
}

TEST(NamedSharding, Conversions) {
  struct Case {
    std::string named, want;
  };
  for (const Case& c : std::vector<Case>{
           {"", "type: REPLICATED"},
           {"mesh { axes { size: 2 } axes { size: 2 } } dim_shardings {} dim_shardings {}", "type: REPLICATED"},
           {"mesh { device_ids: 3 }", "type: MAXIMAL tile_assignment_dimensions: 1 tile_assignment_devices: 3"},
           {"mesh { axes { size: 4 } } dim_shardings { axes {} }",
            "type: OTHER tile_assignment_dimensions: 4 iota_reshape_dims: 4 iota_transpose_perm: 0"},
           {"mesh { axes { size: 2 } axes { size: 3 } } dim_shardings { axes { mesh_axis_index: 1 } } dim_shardings {}",
            "type: OTHER tile_assignment_dimensions: [3, 1, 2] iota_reshape_dims: [2, 3] iota_transpose_perm: [1, 0] "
            "replicate_on_last_tile_dim: true"},
           {"mesh { axes { size: 2 } axes { size: 3 } } dim_shardings { axes { mesh_axis_index: 1 } axes {} }",
            "type: OTHER tile_assignment_dimensions: 6 iota_reshape_dims: [2, 3] iota_transpose_perm: [1, 0]"},
           {"mesh { axes { size: 8 } } dim_shardings { axes { sub_axis_info { pre_size: 2 size: 2 } } }",
            "type: OTHER tile_assignment_dimensions: [2, 4] iota_reshape_dims: [2, 2, 2] iota_transpose_perm: [1, 0, "
            "2] replicate_on_last_tile_dim: true"},
           {"mesh { axes { size: 2 } axes { size: 2 } } dim_shardings { axes {} } manual_axes { mesh_axis_index: 1 }",
            "type: OTHER tile_assignment_dimensions: [2, 2] iota_reshape_dims: 4 iota_transpose_perm: 0 "
            "last_tile_dims: MANUAL"},
           {"mesh { axes { size: 4 } } manual_axes {}", "type: MANUAL"},
           {"mesh { axes { size: 4 } } unreduced_axes {}", "type: UNREDUCED"},
           {"mesh { axes { size: 4 } device_ids: [3, 1, 0, 2] } dim_shardings { axes {} }",
            "type: OTHER tile_assignment_dimensions: 4 tile_assignment_devices: [3, 1, 0, 2]"},
           {"mesh { axes { size: 4 } iota_transform { reshape_dims: [2, 2] transpose_perm: [1, 0] } } dim_shardings { "
            "axes {} }",
            "type: OTHER tile_assignment_dimensions: 4 tile_assignment_devices: [0, 2, 1, 3]"}}) {
    absl::StatusOr<xla::OpSharding> tiled = NamedToTiled(Text<xla::NamedShardingProto>(c.named));
    ASSERT_TRUE(tiled.ok()) << tiled.status() << c.named;
    EXPECT_EQ(tiled->SerializeAsString(), Text<xla::OpSharding>(c.want).SerializeAsString())
        << c.named << " gave " << tiled->ShortDebugString();
  }
}

TEST(NamedSharding, RandomOnesKeepTheirRegions) {
  std::mt19937 random(3);
  auto upto = [&](int n) { return static_cast<int>(random() % n); };
  for (int round = 0; round < 2000; ++round) {
    // A mesh of axes that are products of two parts, whole or one part of them used.
    xla::NamedShardingProto named;
    std::vector<xla::AxisRefProto> refs;
    int n = 1;
    for (int a = 0, axes = 1 + upto(3); a < axes; ++a) {
      const int major = 1 + upto(3), minor = 1 + upto(3);
      named.mutable_mesh()->add_axes()->set_size(major * minor);
      n *= major * minor;
      xla::AxisRefProto ref;
      ref.set_mesh_axis_index(a);
      if (upto(2) == 0) {
        refs.push_back(ref);
        continue;
      }
      for (const auto& [pre, size] : {std::pair(1, major), std::pair(major, minor)}) {
        ref.mutable_sub_axis_info()->set_pre_size(pre);
        ref.mutable_sub_axis_info()->set_size(size);
        refs.push_back(ref);
      }
    }
    std::shuffle(refs.begin(), refs.end(), random);
    std::vector<int64_t> dims;
    for (int d = 0, rank = upto(4); d < rank; ++d) {
      dims.push_back(upto(30));
      auto* dim = named.add_dim_shardings();
      for (int k = upto(3); k > 0 && !refs.empty(); --k) {
        *dim->add_axes() = refs.back();
        refs.pop_back();
      }
    }
    if (upto(3) == 0) {
      std::vector<int64_t> ids(n);
      std::iota(ids.begin(), ids.end(), 0);
      std::shuffle(ids.begin(), ids.end(), random);
      named.mutable_mesh()->mutable_device_ids()->Assign(ids.begin(), ids.end());
    }
    xla::OpSharding op;
    *op.mutable_named_sharding() = named;
    absl::StatusOr<ShardingPtr> sharding = DecodeOpSharding(op, Devices(n));
    ASSERT_TRUE(sharding.ok()) << sharding.status() << named.ShortDebugString();
    ASSERT_EQ(Regions(**sharding, S(dims)), RegionsByDefinition(named, S(dims))) << named.ShortDebugString();
  }
}

TEST(NamedSharding, HostileOnesAreErrors) {
  std::string many = "mesh { axes { size: 4 } } ";
  for (int i = 0; i < 2000; ++i) many += "replicated_axes {} ";
  for (const std::string& text : std::vector<std::string>{
           "mesh { axes { size: 0 } }", "mesh { axes { size: -4 } }",
           "mesh { axes { size: 4611686018427387904 } axes { size: 4 } }",
           "mesh { axes { size: 4 } } dim_shardings { axes { mesh_axis_index: 1 } }",
           "mesh { axes { size: 4 } } dim_shardings { axes { mesh_axis_index: -1 } }",
           "mesh { axes { size: 4 } } dim_shardings { axes {} } dim_shardings { axes {} }",
           "mesh { axes { size: 4 } } dim_shardings { axes {} } manual_axes {}",
           "mesh { axes { size: 8 } } dim_shardings { axes { sub_axis_info { pre_size: 0 size: 2 } } }",
           "mesh { axes { size: 8 } } dim_shardings { axes { sub_axis_info { pre_size: 3 size: 2 } } }",
           "mesh { axes { size: 8 } } dim_shardings { axes { sub_axis_info { pre_size: 4611686018427387904 size: "
           "4611686018427387904 } } }",
           "mesh { axes { size: 8 } } dim_shardings { axes { sub_axis_info { pre_size: 1 size: 4 } } axes { "
           "sub_axis_info { pre_size: 2 size: 2 } } }",
           "mesh { axes { size: 12 } } dim_shardings { axes { sub_axis_info { pre_size: 1 size: 2 } } } "
           "replicated_axes { sub_axis_info { pre_size: 3 size: 2 } }",
           "mesh { axes { size: 4 } device_ids: [0, 1, 2] } dim_shardings { axes {} }",
           "mesh { axes { size: 4 } device_ids: [0, 1, 2, 2] } dim_shardings { axes {} }",
           "mesh { axes { size: 4 } iota_transform { reshape_dims: [2, 3] transpose_perm: [1, 0] } } dim_shardings { "
           "axes {} }",
           "mesh { axes { size: 4 } iota_transform { reshape_dims: [2, 2] transpose_perm: [4294967296, 0] } } "
           "dim_shardings { axes {} }",
           many}) {
    absl::StatusOr<xla::OpSharding> tiled = NamedToTiled(Text<xla::NamedShardingProto>(text));
    EXPECT_EQ(tiled.status().code(), absl::StatusCode::kInvalidArgument) << text.substr(0, 200);
  }
  EXPECT_FALSE(NamedToTiled(Text<xla::NamedShardingProto>("mesh { axes { size: 4 } }"), 8).ok());
}

TEST(NamedSharding, Tuples) {
  const auto tuple = Text<xla::OpSharding>(
      "type: TUPLE tuple_shardings { type: REPLICATED } tuple_shardings { type: TUPLE tuple_shardings { "
      "named_sharding { mesh { axes { size: 4 } } dim_shardings { axes {} } } } tuple_shardings { type: MANUAL } }");
  absl::StatusOr<std::vector<xla::OpSharding>> leaves = FlattenTuple(tuple, 3);
  ASSERT_TRUE(leaves.ok()) << leaves.status();
  EXPECT_EQ((*leaves)[0].type(), xla::OpSharding::REPLICATED);
  EXPECT_EQ((*leaves)[1].type(), xla::OpSharding::OTHER);
  EXPECT_FALSE((*leaves)[1].has_named_sharding());
  EXPECT_EQ((*leaves)[2].type(), xla::OpSharding::MANUAL);
  EXPECT_FALSE(FlattenTuple(tuple, 2).ok());
  EXPECT_FALSE(FlattenTuple(tuple, 4).ok());
  EXPECT_EQ(FlattenTuple(xla::OpSharding(), 5)->size(), 5);
  absl::StatusOr<xla::OpSharding> plain = WithoutNamed(tuple);
  ASSERT_TRUE(plain.ok());
  EXPECT_EQ(plain->ShortDebugString().find("named_sharding"), std::string::npos);
}

// ---- remaps ------------------------------------------------------------------------------------------------------

void AddSpec(xla::ifrt::ArraySpecProto* proto, std::vector<int32_t> devices, std::vector<int64_t> shape,
             DType type = DType::kF32) {
  const int64_t n = static_cast<int64_t>(devices.size());
  std::vector<int64_t> grid(shape.size(), 1);
  grid[0] = n;
  EncodeArraySpec({type, S(shape), *Sharding::Tiled(*DeviceList::Make(devices), *TileAssignment::Iota(grid), {})},
                  proto);
}

// Two inputs on devices 0, 1 and 2, 3 make one output over 0, 2, 1, 3.
xla::ifrt::RemapPlanProto Merge() {
  xla::ifrt::RemapPlanProto plan;
  AddSpec(plan.add_input_specs(), {0, 1}, {4});
  AddSpec(plan.add_input_specs(), {2, 3}, {4});
  AddSpec(plan.add_output_specs(), {0, 2, 1, 3}, {8});
  return plan;
}

TEST(RemapWire, BothForms) {
  const std::vector<RemapSource> want = {{0, 0}, {1, 0}, {0, 1}, {1, 1}};
  auto mappings = Merge();
  mappings.MergeFrom(Text<xla::ifrt::RemapPlanProto>(
      "mappings { in_array: 0 out_array: 0 from_start: 0 from_end: 2 from_step: 1 to_start: 0 to_end: 4 to_step: 2 } "
      "mappings { in_array: 1 out_array: 0 from_start: 0 from_end: 2 from_step: 1 to_start: 1 to_end: 4 to_step: 2 }"));
  auto devices = Merge();
  devices.MergeFrom(Text<xla::ifrt::RemapPlanProto>(
      "version_number: 6 input_devices_for_output { out_array: 0 input_devices { in_array: 0 device_list { device_ids: "
      "[0, 1] } } input_devices { in_array: 1 device_list { device_ids: [2, 3] } } }"));
  for (const auto& proto : {mappings, devices}) {
    absl::StatusOr<RemapPlan> plan = DecodeRemapPlan(proto);
    ASSERT_TRUE(plan.ok()) << plan.status();
    ASSERT_EQ(plan->outputs.size(), 1);
    EXPECT_EQ(plan->outputs[0].sources, want);
    EXPECT_EQ(plan->outputs[0].spec.shape, S({8}));
    EXPECT_EQ(plan->inputs.size(), 2);
  }
}

TEST(RemapWire, HostileOnesAreErrors) {
  const std::string all = "mappings { in_array: 0 out_array: 0 from_start: 0 from_end: 2 from_step: 1 to_start: 0 ";
  for (const std::string& text : std::vector<std::string>{
           "", all + "to_end: 2 to_step: 1 }", all + "to_end: 4 to_step: 0 }", all + "to_end: 4 to_step: -1 }",
           all + "to_end: 4 to_step: 1 }", all + "to_end: 5 to_step: 2 }", all + "to_end: 4 }",
           all + "to_end: 4611686018427387904 to_step: 2305843009213693952 }", "mappings { in_array: 2 out_array: 0 }",
           "mappings { in_array: -1 out_array: 0 }", "mappings { in_array: 0 out_array: 1 }",
           "input_devices_for_output { out_array: 1 input_devices { in_array: 0 } }",
           "input_devices_for_output { out_array: 0 input_devices { in_array: 2 } }",
           "input_devices_for_output { input_devices { device_list { device_ids: [0, 0] } } }",
           "input_devices_for_output { input_devices { device_list { device_ids: [2] } } }",
           "input_devices_for_output { input_devices { device_list { device_ids: [0, 1] } } }"}) {
    auto proto = Merge();
    proto.MergeFrom(Text<xla::ifrt::RemapPlanProto>(text));
    EXPECT_EQ(DecodeRemapPlan(proto).status().code(), absl::StatusCode::kInvalidArgument) << text;
  }
}

TEST(RemapWire, TypesShapesAndDevicesMustFit) {
  const auto all = Text<xla::ifrt::RemapPlanProto>(
      "mappings { from_start: 0 from_end: 2 from_step: 1 to_start: 0 to_end: 2 to_step: 1 }");
  auto decode = [&](DType type, std::vector<int32_t> devices, std::vector<int64_t> shape) {
    xla::ifrt::RemapPlanProto proto = all;
    AddSpec(proto.add_input_specs(), {0, 1}, {4, 2});
    AddSpec(proto.add_output_specs(), devices, shape, type);
    return DecodeRemapPlan(proto).status();
  };
  EXPECT_TRUE(decode(DType::kF32, {0, 1}, {4, 2}).ok());
  EXPECT_THAT(std::string(decode(DType::kS32, {0, 1}, {4, 2}).message()),
              HasSubstr("type s32 from input 0 of type f32"));
  EXPECT_THAT(std::string(decode(DType::kF32, {1, 0}, {4, 2}).message()), HasSubstr("device 0, not on 1"));
  EXPECT_THAT(std::string(decode(DType::kF32, {0, 1}, {6, 2}).message()), HasSubstr("its shape is [2,2], not [3,2]"));
}

}  // namespace
}  // namespace parkway::ifrt
