// Types, shapes, device lists, layouts and array specs on the client's wire. Decoding checks everything: what comes out
// is valid, and what is not gives INVALID_ARGUMENT or UNIMPLEMENTED with a text that names it.
#pragma once

#include <optional>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "ifrt/array_spec.h"
#include "proto/ifrt/ifrt.pb.h"
#include "proto/ifrt/xla_data.pb.h"

namespace parkway::ifrt {

absl::StatusOr<DType> DecodeDType(const xla::ifrt::DTypeProto& proto);
void EncodeDType(DType type, xla::ifrt::DTypeProto* proto);

absl::StatusOr<Shape> DecodeShape(const xla::ifrt::ShapeProto& proto);
void EncodeShape(const Shape& shape, xla::ifrt::ShapeProto* proto);

absl::StatusOr<DeviceListPtr> DecodeDeviceList(const xla::ifrt::DeviceListProto& proto);
void EncodeDeviceList(const DeviceList& devices, xla::ifrt::DeviceListProto* proto);

// The layout in a request for an array of `rank` dimensions; nothing where it is the default.
absl::StatusOr<std::optional<Layout>> DecodeLayout(const xla::ifrt::LayoutProto& proto, int rank);
absl::StatusOr<Layout> DecodeXlaLayout(const xla::LayoutProto& proto);
void EncodeXlaLayout(const Layout& layout, xla::LayoutProto* proto);

absl::StatusOr<ArraySpec> DecodeArraySpec(const xla::ifrt::ArraySpecProto& proto);
void EncodeArraySpec(const ArraySpec& spec, xla::ifrt::ArraySpecProto* proto);

}  // namespace parkway::ifrt
