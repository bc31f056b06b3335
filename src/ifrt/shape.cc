#include "ifrt/shape.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/limits.h"

namespace parkway::ifrt {

std::string DimsToString(absl::Span<const int64_t> dims) {
  constexpr size_t kShown = 16;
  return absl::StrCat("[", absl::StrJoin(dims.subspan(0, kShown), ","), dims.size() > kShown ? ",..." : "", "]");
}

absl::StatusOr<Shape> Shape::Make(absl::Span<const int64_t> dims) {
  if (dims.size() > static_cast<size_t>(limits::kMaxRank)) {
    return absl::InvalidArgumentError(
        absl::StrCat("a shape of rank ", dims.size(), ": the most is ", limits::kMaxRank));
  }
  Shape shape;
  int64_t volume = 1;  // of the sizes that aren't zero
  for (int64_t dim : dims) {
    if (dim < 0) return absl::InvalidArgumentError(absl::StrCat("shape ", DimsToString(dims), " has a negative size"));
    if (dim == 0) {
      shape.num_elements_ = 0;
      continue;
    }
    if (dim > limits::kMaxArrayBytes / volume) {
      return absl::InvalidArgumentError(absl::StrCat("shape ", DimsToString(dims), " has more than ",
                                                     limits::kMaxArrayBytes, " elements, the most of one array"));
    }
    volume *= dim;
  }
  if (shape.num_elements_ != 0) shape.num_elements_ = volume;
  shape.dims_.assign(dims.begin(), dims.end());
  return shape;
}

absl::StatusOr<int64_t> Shape::ByteSize(DType type) const {
  const int width = ByteWidth(type);
  if (width == 0) {
    return absl::InvalidArgumentError(absl::StrCat("an array of type ", Name(type), " has no fixed size in bytes"));
  }
  if (num_elements_ > limits::kMaxArrayBytes / width) {
    return absl::InvalidArgumentError(absl::StrCat("an array ", Name(type), ToString(), " is larger than ",
                                                   limits::kMaxArrayBytes, " bytes, the most of one array"));
  }
  return num_elements_ * width;
}

int64_t Region::num_elements() const {
  int64_t n = 1;
  for (int64_t s : size) n *= s;
  return n;
}

std::string Region::ToString() const {
  std::string out = "[";
  for (size_t i = 0; i < start.size(); ++i) {
    absl::StrAppend(&out, i == 0 ? "" : ",", start[i], ":", start[i] + size[i]);
  }
  return out + "]";
}

Region WholeRegion(const Shape& shape) { return Region{Dims(shape.rank(), 0), shape.dims()}; }

std::optional<Region> Intersect(const Region& a, const Region& b) {
  Region out;
  for (size_t i = 0; i < a.start.size(); ++i) {
    const int64_t start = std::max(a.start[i], b.start[i]);
    const int64_t end = std::min(a.start[i] + a.size[i], b.start[i] + b.size[i]);
    if (end <= start) return std::nullopt;
    out.start.push_back(start);
    out.size.push_back(end - start);
  }
  return out;
}

}  // namespace parkway::ifrt
