#include "ifrt/sharding.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "ifrt/intern.h"

namespace parkway::ifrt {
namespace {

InternTable<Sharding>& Table() {
  static auto* table = new InternTable<Sharding>();
  return *table;
}

absl::Status Invalid(absl::string_view text) { return absl::InvalidArgumentError(absl::StrCat("sharding: ", text)); }

int64_t CeilDiv(int64_t a, int64_t b) { return a / b + (a % b != 0 ? 1 : 0); }

absl::string_view KindName(Sharding::Kind kind) {
  switch (kind) {
    case Sharding::Kind::kSingle:
      return "single device";
    case Sharding::Kind::kReplicated:
      return "replicated";
    case Sharding::Kind::kTiled:
      return "tiled";
    case Sharding::Kind::kMaximal:
      return "maximal";
    case Sharding::Kind::kManual:
      return "manual";
    case Sharding::Kind::kUnknown:
      return "unknown";
    case Sharding::Kind::kUnreduced:
      return "unreduced";
    case Sharding::Kind::kOpaque:
      return "opaque";
    case Sharding::Kind::kConcreteEven:
      return "concrete even";
    case Sharding::Kind::kConcrete:
      return "concrete";
  }
  return "?";
}

// Subgroups of one device say nothing.
void DropTrivialSubgroups(TileAssignment* tiles, Sharding::Subgroups* subgroups) {
  const size_t rank = tiles->grid().size() - subgroups->size();
  absl::InlinedVector<bool, 16> drop(tiles->grid().size(), false);
  Sharding::Subgroups kept;
  for (size_t i = 0; i < subgroups->size(); ++i) {
    drop[rank + i] = tiles->grid()[rank + i] == 1;
    if (!drop[rank + i]) kept.push_back((*subgroups)[i]);
  }
  if (kept.size() == subgroups->size()) return;
  *tiles = tiles->Without(drop);
  *subgroups = kept;
}

void AppendShape(const Shape& shape, std::string* key) { absl::StrAppend(key, "s", absl::StrJoin(shape.dims(), ",")); }

}  // namespace

Sharding::Sharding(Fields fields)
    : kind_(fields.kind),
      devices_(std::move(fields.devices)),
      memory_(std::move(fields.memory)),
      tiles_(std::move(fields.tiles)),
      subgroups_(std::move(fields.subgroups)),
      maximal_position_(fields.maximal_position),
      concrete_shape_(std::move(fields.concrete_shape)),
      shard_shapes_(std::move(fields.shard_shapes)),
      concrete_replicated_(fields.concrete_replicated) {}

// The device list's address stands for its contents: a sharding keeps its list alive, so as long as an entry of the
// table is live no other list can have that address.
std::string Sharding::Key(const Fields& fields) {
  std::string key = absl::StrCat(static_cast<int>(fields.kind), "@", reinterpret_cast<uintptr_t>(fields.devices.get()),
                                 "m", fields.maximal_position, fields.concrete_replicated ? "R" : "P");
  if (fields.tiles) fields.tiles->AppendKey(&key);
  for (Subgroup group : fields.subgroups) absl::StrAppend(&key, "u", static_cast<int>(group));
  AppendShape(fields.concrete_shape, &key);
  for (const Shape& shape : fields.shard_shapes) AppendShape(shape, &key);
  if (fields.memory) absl::StrAppend(&key, "k", *fields.memory);
  return key;
}

absl::StatusOr<ShardingPtr> Sharding::Intern(Fields fields) {
  if (fields.devices == nullptr || fields.devices->size() == 0) return Invalid("it names no device");
  if (fields.devices->size() == 1 && fields.kind != Kind::kOpaque && fields.kind != Kind::kConcrete &&
      fields.kind != Kind::kConcreteEven) {
    fields = Fields{.kind = Kind::kSingle, .devices = std::move(fields.devices), .memory = std::move(fields.memory)};
  }
  std::string key = Key(fields);
  return Table().Get(std::move(key), [&] { return ShardingPtr(new Sharding(std::move(fields))); });
}

absl::StatusOr<ShardingPtr> Sharding::SingleDevice(int32_t device, MemoryKind memory) {
  absl::StatusOr<DeviceListPtr> devices = DeviceList::Make({device});
  if (!devices.ok()) return devices.status();
  return Intern({.kind = Kind::kSingle, .devices = *std::move(devices), .memory = std::move(memory)});
}

absl::StatusOr<ShardingPtr> Sharding::Replicated(DeviceListPtr devices, MemoryKind memory) {
  return Intern({.kind = Kind::kReplicated, .devices = std::move(devices), .memory = std::move(memory)});
}

absl::StatusOr<ShardingPtr> Sharding::Tiled(DeviceListPtr devices, TileAssignment tiles, Subgroups subgroups,
                                            MemoryKind memory) {
  if (devices == nullptr || tiles.num_tiles() != devices->size()) {
    return Invalid(absl::StrCat("the grid ", DimsToString(tiles.grid()), " has ", tiles.num_tiles(), " tiles for ",
                                devices ? devices->size() : 0, " devices"));
  }
  if (subgroups.size() > tiles.grid().size()) {
    return Invalid(absl::StrCat("the grid ", DimsToString(tiles.grid()), " has fewer dimensions than the ",
                                subgroups.size(), " subgroups at its end"));
  }
  DropTrivialSubgroups(&tiles, &subgroups);
  const ptrdiff_t groups = static_cast<ptrdiff_t>(subgroups.size());
  const auto data_end = tiles.grid().end() - groups;
  const bool one_tile = std::all_of(tiles.grid().begin(), data_end, [](int64_t n) { return n == 1; });
  const auto all = [&](Subgroup group) { return std::count(subgroups.begin(), subgroups.end(), group) == groups; };
  if (one_tile && all(Subgroup::kReplicated)) return Replicated(std::move(devices), std::move(memory));
  if (one_tile && all(Subgroup::kManual)) return Unplaced(Kind::kManual, std::move(devices), std::move(memory));
  if (one_tile && all(Subgroup::kUnreduced)) return Unplaced(Kind::kUnreduced, std::move(devices), std::move(memory));
  return Intern({.kind = Kind::kTiled,
                 .devices = std::move(devices),
                 .memory = std::move(memory),
                 .tiles = std::move(tiles),
                 .subgroups = std::move(subgroups)});
}

absl::StatusOr<ShardingPtr> Sharding::Maximal(DeviceListPtr devices, int64_t position, MemoryKind memory) {
  if (devices == nullptr || position < 0 || position >= devices->size()) {
    return Invalid(
        absl::StrCat("a maximal sharding on position ", position, " of ", devices ? devices->size() : 0, " devices"));
  }
  return Intern({.kind = Kind::kMaximal,
                 .devices = std::move(devices),
                 .memory = std::move(memory),
                 .maximal_position = static_cast<int>(position)});
}

absl::StatusOr<ShardingPtr> Sharding::Unplaced(Kind kind, DeviceListPtr devices, MemoryKind memory) {
  if (kind != Kind::kManual && kind != Kind::kUnknown && kind != Kind::kUnreduced && kind != Kind::kOpaque) {
    return Invalid(absl::StrCat("a ", KindName(kind), " sharding needs more than devices"));
  }
  return Intern({.kind = kind, .devices = std::move(devices), .memory = std::move(memory)});
}

absl::StatusOr<ShardingPtr> Sharding::ConcreteEven(DeviceListPtr devices, Shape shape, Shape shard_shape,
                                                   bool fully_replicated, MemoryKind memory) {
  if (fully_replicated && !(shape == shard_shape)) {
    return Invalid(absl::StrCat("replicated shards of shape ", shard_shape.ToString(), " of an array of shape ",
                                shape.ToString()));
  }
  return Intern({.kind = Kind::kConcreteEven,
                 .devices = std::move(devices),
                 .memory = std::move(memory),
                 .concrete_shape = std::move(shape),
                 .shard_shapes = {std::move(shard_shape)},
                 .concrete_replicated = fully_replicated});
}

absl::StatusOr<ShardingPtr> Sharding::Concrete(DeviceListPtr devices, Shape shape, std::vector<Shape> shard_shapes,
                                               MemoryKind memory) {
  if (devices == nullptr || static_cast<size_t>(devices->size()) != shard_shapes.size()) {
    return Invalid(absl::StrCat(shard_shapes.size(), " shard shapes for ", devices ? devices->size() : 0, " devices"));
  }
  return Intern({.kind = Kind::kConcrete,
                 .devices = std::move(devices),
                 .memory = std::move(memory),
                 .concrete_shape = std::move(shape),
                 .shard_shapes = std::move(shard_shapes)});
}

bool Sharding::IsFullyReplicated() const {
  // Tiled never is: one tile with copies of it became kReplicated.
  return kind_ == Kind::kSingle || kind_ == Kind::kReplicated ||
         (kind_ == Kind::kConcreteEven && (concrete_replicated_ || num_shards() == 1));
}

absl::Status Sharding::CheckShape(const Shape& shape) const {
  if (kind_ == Kind::kTiled) {
    const size_t rank = tiles_->grid().size() - subgroups_.size();
    if (rank != static_cast<size_t>(shape.rank())) {
      return Invalid(absl::StrCat("a grid of ", rank, " dimensions can't tile an array of shape ", shape.ToString()));
    }
  } else if (kind_ == Kind::kConcrete || kind_ == Kind::kConcreteEven) {
    if (!(concrete_shape_ == shape)) {
      return Invalid(
          absl::StrCat("it is for arrays of shape ", concrete_shape_.ToString(), ", not ", shape.ToString()));
    }
  } else if (kind_ == Kind::kOpaque && num_shards() != 1) {
    return absl::FailedPreconditionError("sharding: an opaque sharding tells no shape of its shards");
  }
  return absl::OkStatus();
}

absl::StatusOr<Shape> Sharding::ShardShape(const Shape& shape) const {
  if (absl::Status status = CheckShape(shape); !status.ok()) return status;
  if (kind_ == Kind::kTiled) {
    Dims dims = shape.dims();
    for (size_t i = 0; i < dims.size(); ++i) dims[i] = CeilDiv(dims[i], tiles_->grid()[i]);
    return Shape::Make(dims);
  }
  if (kind_ == Kind::kConcreteEven) return shard_shapes_[0];
  if (kind_ == Kind::kConcrete) {
    for (const Shape& shard : shard_shapes_) {
      if (!(shard == shard_shapes_[0])) {
        return Invalid(
            absl::StrCat("its shards have several shapes: ", shard_shapes_[0].ToString(), " and ", shard.ToString()));
      }
    }
    return shard_shapes_[0];
  }
  return shape;
}

absl::StatusOr<Shape> Sharding::ShardShape(const Shape& shape, int shard) const {
  if (kind_ == Kind::kTiled) {
    absl::StatusOr<Region> region = ShardRegion(shape, shard);
    if (!region.ok()) return region.status();
    return Shape::Make(region->size);
  }
  if (kind_ == Kind::kConcrete) {
    if (absl::Status status = CheckShape(shape); !status.ok()) return status;
    return shard_shapes_[shard];
  }
  return ShardShape(shape);
}

absl::StatusOr<Region> Sharding::ShardRegion(const Shape& shape, int shard) const {
  if (absl::Status status = CheckShape(shape); !status.ok()) return status;
  if (kind_ == Kind::kTiled) {
    const Dims tile = tiles_->TileOf(shard);
    Region region;
    for (int i = 0; i < shape.rank(); ++i) {
      const int64_t dim = shape.dim(i);
      const int64_t length = CeilDiv(dim, tiles_->grid()[i]);
      const int64_t start = std::min(tile[i] * length, dim);
      region.start.push_back(start);
      region.size.push_back(std::min(length, dim - start));
    }
    return region;
  }
  if (whole_array_shards() || num_shards() == 1 || IsFullyReplicated()) return WholeRegion(shape);
  return absl::FailedPreconditionError(
      absl::StrCat("sharding: a ", KindName(kind_), " sharding does not say where its shards lie"));
}

bool Sharding::Equivalent(const Sharding& other, const Shape& shape) const {
  if (this == &other) return true;
  if (!devices_->SameSet(*other.devices_)) return false;
  if (IsFullyReplicated() || other.IsFullyReplicated()) return IsFullyReplicated() && other.IsFullyReplicated();
  auto placed = [](const Sharding& s) {
    return s.kind_ == Kind::kTiled &&
           std::find(s.subgroups_.begin(), s.subgroups_.end(), Subgroup::kManual) == s.subgroups_.end() &&
           std::find(s.subgroups_.begin(), s.subgroups_.end(), Subgroup::kUnreduced) == s.subgroups_.end();
  };
  if (!placed(*this) || !placed(other)) {
    // Without known regions only the same form is known to be the same: over the same devices, memory aside.
    if (devices_ != other.devices_) return false;
    absl::StatusOr<ShardingPtr> same_memory = other.With(devices_, memory_);
    return same_memory.ok() && same_memory->get() == this;
  }
  for (int i = 0; i < num_shards(); ++i) {
    absl::StatusOr<Region> mine = ShardRegion(shape, i);
    absl::StatusOr<Region> theirs = other.ShardRegion(shape, *other.devices_->Position(devices_->id(i)));
    if (!mine.ok() || !theirs.ok() || !(*mine == *theirs)) return false;
  }
  return true;
}

bool Sharding::Fits(const Sharding& other, const Shape& shape) const {
  if (Equivalent(other, shape)) return true;
  const bool concrete = kind_ == Kind::kConcrete || kind_ == Kind::kConcreteEven;
  if (!concrete && shape.num_elements() != 0) return false;
  if (!devices_->SameSet(*other.devices_)) return false;
  for (int i = 0; i < num_shards(); ++i) {
    absl::StatusOr<Shape> mine = ShardShape(shape, i);
    absl::StatusOr<Shape> wanted = other.ShardShape(shape, *other.devices_->Position(devices_->id(i)));
    if (!mine.ok() || !wanted.ok() || !(*mine == *wanted)) return false;
  }
  return true;
}

absl::StatusOr<ShardingPtr> Sharding::With(DeviceListPtr devices, MemoryKind memory) const {
  if (devices == nullptr || devices->size() != num_shards()) {
    return Invalid(
        absl::StrCat("an array of ", num_shards(), " shards can't lie on ", devices ? devices->size() : 0, " devices"));
  }
  return Intern({.kind = kind_,
                 .devices = std::move(devices),
                 .memory = std::move(memory),
                 .tiles = tiles_,
                 .subgroups = subgroups_,
                 .maximal_position = maximal_position_,
                 .concrete_shape = concrete_shape_,
                 .shard_shapes = shard_shapes_,
                 .concrete_replicated = concrete_replicated_});
}

ShardingPtr Sharding::ShardOf(int shard) const { return *SingleDevice(devices_->id(shard), memory_); }

std::string Sharding::ToString() const {
  std::string out = absl::StrCat(KindName(kind_), " over ", devices_->ToString());
  if (kind_ == Kind::kTiled) {
    absl::StrAppend(&out, " in tiles ", DimsToString(tiles_->grid()));
    if (!subgroups_.empty()) absl::StrAppend(&out, " (last ", subgroups_.size(), " no dimensions of the array)");
  }
  if (memory_) absl::StrAppend(&out, " in ", *memory_);
  return out;
}

}  // namespace parkway::ifrt
