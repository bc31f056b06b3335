// Does a program take an array of that type? Asked by the core for global arrays and by engines for single shards.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/types/span.h"
#include "ifrt/dtype.h"

namespace parkway::ifrt {

// What is wrong with an argument of `dtype` and `dims` for a parameter of `wanted` and `wanted_dims`, to follow "it
// is": "f32[4], but the program takes f32[8]". None when it fits.
std::optional<std::string> ArgumentMismatch(DType dtype, absl::Span<const int64_t> dims, DType wanted,
                                            absl::Span<const int64_t> wanted_dims);

}  // namespace parkway::ifrt
