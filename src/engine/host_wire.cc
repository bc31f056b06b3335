#include "engine/host_wire.h"

#include <cstdlib>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace parkway::engine {

absl::StatusOr<Type> TypeFromProto(const TypeProto& proto) {
  Type type;
  PARKWAY_ASSIGN_OR_RETURN(type.dtype, ifrt::DTypeFromNumber(proto.dtype()));
  PARKWAY_ASSIGN_OR_RETURN(const ifrt::Shape shape, ifrt::Shape::Make(proto.dims()));
  if (ifrt::ByteWidth(type.dtype) != 0) PARKWAY_RETURN_IF_ERROR(shape.ByteSize(type.dtype).status());
  type.dims.assign(proto.dims().begin(), proto.dims().end());
  return type;
}

ifrt::Shape ShapeOf(const Type& type) { return ifrt::Shape::Make(type.dims).value(); }

int64_t Elements(const std::vector<int64_t>& dims) {
  int64_t elements = 1;
  for (int64_t dim : dims) {
    if (dim == 0) return 0;
    elements *= dim;
  }
  return elements;
}

int64_t DenseBytes(const Type& type) { return Elements(type.dims) * ifrt::ByteWidth(type.dtype); }

std::string ToString(const Type& type) { return absl::StrCat(ifrt::Name(type.dtype), ifrt::DimsToString(type.dims)); }

Box WholeOf(const Type& type) { return {std::vector<int64_t>(type.dims.size(), 0), type.dims}; }

absl::StatusOr<Box> BoxFromProto(bool has_region, const Region& region, const Type& type) {
  if (!has_region) return WholeOf(type);
  const auto rank = static_cast<int>(type.dims.size());
  if (region.start_size() != rank || region.size_size() != rank) {
    return absl::InvalidArgumentError(
        absl::StrCat("a region of ", region.start_size(), " dimensions inside ", ToString(type)));
  }
  for (int i = 0; i < rank; ++i) {
    const int64_t start = region.start(i), size = region.size(i);
    if (start < 0 || size < 0 || start > type.dims[i] || size > type.dims[i] - start) {
      return absl::InvalidArgumentError(
          absl::StrCat("a region from ", start, " of size ", size, " in dimension ", i, " leaves ", ToString(type)));
    }
  }
  return Box{{region.start().begin(), region.start().end()}, {region.size().begin(), region.size().end()}};
}

bool Overlap(const Box& a, const Box& b) {
  for (size_t i = 0; i < a.start.size(); ++i) {
    if (a.start[i] >= b.start[i] + b.size[i] || b.start[i] >= a.start[i] + a.size[i]) return false;
  }
  return Elements(a.size) > 0 && Elements(b.size) > 0;
}

absl::StatusOr<Buffer> Allocate(int64_t size) {
  const size_t rounded = (static_cast<size_t>(size) + 63) / 64 * 64;
  auto* data = static_cast<uint8_t*>(std::aligned_alloc(64, rounded == 0 ? 64 : rounded));
  if (data == nullptr) {
    return absl::ResourceExhaustedError(absl::StrCat("no memory for a buffer of ", size, " bytes on this host"));
  }
  return Buffer{std::shared_ptr<uint8_t>(data, [](uint8_t* p) { std::free(p); }), static_cast<size_t>(size)};
}

bool IsPeerComplaint(const absl::Status& status) {
  static constexpr const char* kWords[] = {"gloo", "closed by peer", "reset by peer", "connection reset",
                                           "broken pipe"};
  const std::string text = absl::AsciiStrToLower(status.message());
  for (const char* word : kWords) {
    if (absl::StrContains(text, word)) return true;
  }
  return false;
}

}  // namespace parkway::engine
