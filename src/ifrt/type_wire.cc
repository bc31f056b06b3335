#include "ifrt/type_wire.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "ifrt/sharding_wire.h"
#include "proto/ifrt/sharding.pb.h"

namespace parkway::ifrt {
namespace {

absl::StatusOr<std::optional<Layout>> CheckRank(absl::StatusOr<Layout> layout, int rank) {
  if (!layout.ok()) return layout.status();
  if (layout->rank() != rank) {
    return absl::InvalidArgumentError(
        absl::StrCat("layout ", layout->ToString(), " for an array of ", rank, " dimensions"));
  }
  return *std::move(layout);
}

template <typename Message>
absl::StatusOr<Message> Parse(const xla::ifrt::Serialized& serialized) {
  Message message;
  if (message.ParseFromString(serialized.data())) return message;
  return absl::InvalidArgumentError(
      absl::StrCat("a ", serialized.type_name().substr(0, 64), " that is no ", message.GetTypeName()));
}

}  // namespace

absl::StatusOr<DType> DecodeDType(const xla::ifrt::DTypeProto& proto) { return DTypeFromNumber(proto.kind()); }

void EncodeDType(DType type, xla::ifrt::DTypeProto* proto) {
  proto->set_kind(static_cast<xla::ifrt::DTypeProto::Kind>(type));
}

absl::StatusOr<Shape> DecodeShape(const xla::ifrt::ShapeProto& proto) { return Shape::Make(proto.dims()); }

void EncodeShape(const Shape& shape, xla::ifrt::ShapeProto* proto) {
  proto->mutable_dims()->Assign(shape.dims().begin(), shape.dims().end());
}

absl::StatusOr<DeviceListPtr> DecodeDeviceList(const xla::ifrt::DeviceListProto& proto) {
  return DeviceList::Make(proto.device_ids());
}

void EncodeDeviceList(const DeviceList& devices, xla::ifrt::DeviceListProto* proto) {
  proto->mutable_device_ids()->Assign(devices.ids().begin(), devices.ids().end());
}

absl::StatusOr<std::optional<Layout>> DecodeLayout(const xla::ifrt::LayoutProto& proto, int rank) {
  const xla::ifrt::Serialized& serialized = proto.serialized_layout();
  if (serialized.type_name().empty()) return std::nullopt;
  if (serialized.type_name() == "xla::ifrt::PjRtLayout") {
    PARKWAY_ASSIGN_OR_RETURN(auto layout, Parse<xla::ifrt::PjRtLayoutProto>(serialized));
    if (!layout.has_xla_layout()) return std::nullopt;
    return CheckRank(DecodeXlaLayout(layout.xla_layout()), rank);
  }
  if (serialized.type_name() == "xla::ifrt::CompactLayout") {
    PARKWAY_ASSIGN_OR_RETURN(auto layout, Parse<xla::ifrt::CompactLayoutProto>(serialized));
    return CheckRank(
        Layout::Make(std::vector<int64_t>(layout.major_to_minor().rbegin(), layout.major_to_minor().rend())), rank);
  }
  return absl::InvalidArgumentError(
      absl::StrCat("\"", serialized.type_name().substr(0, 64), "\" is no kind of layout"));
}

absl::StatusOr<Layout> DecodeXlaLayout(const xla::LayoutProto& proto) {
  if (proto.tiles_size() > 0 || proto.memory_space() != 0 || proto.split_configs_size() > 0 ||
      proto.tail_padding_alignment_in_elements() > 1 || proto.has_physical_shape()) {
    return absl::UnimplementedError(
        "a layout with tiles, splits, padding or a memory space: Parkway's arrays are dense, on their devices' memory");
  }
  for (int type : proto.dim_level_types()) {
    if (type != xla::DIM_DENSE) return absl::UnimplementedError("a sparse layout: Parkway's arrays are dense");
  }
  return Layout::Make(proto.minor_to_major());
}

void EncodeXlaLayout(const Layout& layout, xla::LayoutProto* proto) {
  proto->mutable_minor_to_major()->Assign(layout.minor_to_major().begin(), layout.minor_to_major().end());
}

absl::StatusOr<ArraySpec> DecodeArraySpec(const xla::ifrt::ArraySpecProto& proto) {
  ArraySpec spec;
  PARKWAY_ASSIGN_OR_RETURN(spec.dtype, DecodeDType(proto.dtype()));
  PARKWAY_ASSIGN_OR_RETURN(spec.shape, DecodeShape(proto.shape()));
  PARKWAY_ASSIGN_OR_RETURN(spec.sharding, DecodeSharding(proto.sharding()));
  if (!proto.layout().empty()) {
    PARKWAY_ASSIGN_OR_RETURN(spec.layout, CheckRank(Layout::Parse(proto.layout()), spec.shape.rank()));
  }
  return spec;
}

void EncodeArraySpec(const ArraySpec& spec, xla::ifrt::ArraySpecProto* proto) {
  EncodeDType(spec.dtype, proto->mutable_dtype());
  EncodeShape(spec.shape, proto->mutable_shape());
  EncodeSharding(*spec.sharding, proto->mutable_sharding());
  if (spec.layout) proto->set_layout(spec.layout->ToString());
}

}  // namespace parkway::ifrt
