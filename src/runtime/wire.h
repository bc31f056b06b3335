// Types and regions as operations on engines carry them (proto/parkway/engine.proto). Pure.
#pragma once

#include <cstdint>

#include "absl/types/span.h"
#include "ifrt/dtype.h"
#include "ifrt/shape.h"
#include "proto/parkway/engine.pb.h"

namespace parkway::runtime {

inline void EncodeType(ifrt::DType dtype, absl::Span<const int64_t> dims, TypeProto* proto) {
  proto->set_dtype(static_cast<int>(dtype));
  for (int64_t dim : dims) proto->add_dims(dim);
}

inline void EncodeRegion(const ifrt::Region& region, Region* proto) {
  for (int64_t start : region.start) proto->add_start(start);
  for (int64_t size : region.size) proto->add_size(size);
}

}  // namespace parkway::runtime
