// What an array is: its element type, its global shape, how it lies on devices, and the layout that a client asked for.
#pragma once

#include <optional>

#include "ifrt/dtype.h"
#include "ifrt/layout.h"
#include "ifrt/shape.h"
#include "ifrt/sharding.h"

namespace parkway::ifrt {

struct ArraySpec {
  DType dtype{};
  Shape shape;  // global
  ShardingPtr sharding;
  std::optional<Layout> layout;  // unset: the default
};

}  // namespace parkway::ifrt
