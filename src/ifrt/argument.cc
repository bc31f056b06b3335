#include "ifrt/argument.h"

#include "absl/strings/str_cat.h"
#include "ifrt/shape.h"

namespace parkway::ifrt {

std::optional<std::string> ArgumentMismatch(DType dtype, absl::Span<const int64_t> dims, DType wanted,
                                            absl::Span<const int64_t> wanted_dims) {
  if (dtype == wanted && dims == wanted_dims) return std::nullopt;
  return absl::StrCat(Name(dtype), DimsToString(dims), ", but the program takes ", Name(wanted),
                      DimsToString(wanted_dims));
}

}  // namespace parkway::ifrt
