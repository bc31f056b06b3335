// From the wire of proto/parkway/engine.proto to the seam's values, with checks: nothing that comes in can make a size
// overflow or a region leave its array. Pure functions; any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/engine.h"
#include "ifrt/shape.h"
#include "proto/parkway/engine.pb.h"

namespace parkway::engine {

// A box inside an array, in elements.
struct Box {
  std::vector<int64_t> start, size;
  friend bool operator==(const Box&, const Box&) = default;
};

// INVALID_ARGUMENT for unknown types and for dimensions that are no ifrt::Shape.
absl::StatusOr<Type> TypeFromProto(const TypeProto& proto);
ifrt::Shape ShapeOf(const Type& type);  // of a type that was checked
// Dense bytes on the wire; 0 for tokens.
int64_t DenseBytes(const Type& type);
int64_t Elements(const std::vector<int64_t>& dims);
std::string ToString(const Type& type);  // "f32[8,4]"

Box WholeOf(const Type& type);
// A region that is unset is all of `type`.
absl::StatusOr<Box> BoxFromProto(bool has_region, const Region& region, const Type& type);
bool Overlap(const Box& a, const Box& b);

// Heap memory for `size` bytes, 64-byte aligned; RESOURCE_EXHAUSTED when there is none.
struct Buffer {
  std::shared_ptr<uint8_t> data;
  size_t size = 0;
  Bytes Share() const { return Bytes{data.get(), size, data, ""}; }
};
absl::StatusOr<Buffer> Allocate(int64_t size);

// A complaint of a collective about another host, rather than about the program: its cause has to be looked for there.
bool IsPeerComplaint(const absl::Status& status);

}  // namespace parkway::engine
