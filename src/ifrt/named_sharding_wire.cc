#include "ifrt/named_sharding_wire.h"

#include <algorithm>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/limits.h"
#include "base/status.h"
#include "ifrt/shape.h"
#include "ifrt/tile_assignment.h"

namespace parkway::ifrt {
namespace {

using xla::AxisRefProto;
using xla::OpSharding;
using AxisRefs = google::protobuf::RepeatedPtrField<AxisRefProto>;

absl::Status Invalid(absl::string_view text) {
  return absl::InvalidArgumentError(absl::StrCat("named sharding: ", text));
}

// A mesh whose axes are cut wherever a reference begins or ends, so that every reference is a run of whole factors.
// Factors are in the mesh's order, major first; each belongs to at most one reference.
class CutMesh {
 public:
  static absl::StatusOr<CutMesh> Make(const xla::NamedShardingProto& named);

  // The product of the factors of these references; takes them, in order, as the next of the transposition.
  absl::StatusOr<int64_t> Take(const AxisRefs& refs);
  // The product of the factors that nobody took.
  int64_t TakeRest();

  int64_t size() const { return size_; }
  const Dims& factors() const { return factors_; }
  const std::vector<int32_t>& order() const { return order_; }

 private:
  struct Axis {
    int64_t size;
    std::vector<int64_t> cuts;  // ascending, from 1 to size: products of the factors so far
    int first_factor;
  };

  absl::Status AddAxes(const xla::MeshProto& mesh);
  absl::Status AddCuts(const AxisRefs& refs);
  absl::Status Finish();
  static std::pair<int64_t, int64_t> Ends(const AxisRefProto& ref, const Axis& axis);

  std::vector<Axis> axes_;
  int64_t size_ = 1;
  int refs_ = 0;
  Dims factors_;
  std::vector<bool> taken_;
  std::vector<int32_t> order_;
};

absl::StatusOr<CutMesh> CutMesh::Make(const xla::NamedShardingProto& named) {
  CutMesh mesh;
  PARKWAY_RETURN_IF_ERROR(mesh.AddAxes(named.mesh()));
  if (named.dim_shardings_size() > limits::kMaxRank) {
    return Invalid(
        absl::StrCat("for an array of ", named.dim_shardings_size(), " dimensions, the most is ", limits::kMaxRank));
  }
  for (const auto& dim : named.dim_shardings()) PARKWAY_RETURN_IF_ERROR(mesh.AddCuts(dim.axes()));
  PARKWAY_RETURN_IF_ERROR(mesh.AddCuts(named.replicated_axes()));
  PARKWAY_RETURN_IF_ERROR(mesh.AddCuts(named.unreduced_axes()));
  PARKWAY_RETURN_IF_ERROR(mesh.AddCuts(named.manual_axes()));
  PARKWAY_RETURN_IF_ERROR(mesh.Finish());
  return mesh;
}

absl::Status CutMesh::AddAxes(const xla::MeshProto& mesh) {
  if (mesh.axes_size() > limits::kMaxTileRank) {
    return Invalid(absl::StrCat("a mesh of ", mesh.axes_size(), " axes, the most is ", limits::kMaxTileRank));
  }
  for (const auto& axis : mesh.axes()) {
    if (axis.size() < 1 || axis.size() > limits::kMaxDevicesPerSharding / size_) {
      return Invalid(absl::StrCat("axis \"", axis.name().substr(0, 64), "\" of size ", axis.size(),
                                  " makes a mesh of none or more than ", limits::kMaxDevicesPerSharding, " devices"));
    }
    size_ *= axis.size();
    axes_.push_back({.size = axis.size(), .cuts = {1, axis.size()}});
  }
  return absl::OkStatus();
}

absl::Status CutMesh::AddCuts(const AxisRefs& refs) {
  refs_ += refs.size();
  if (refs_ > 4 * limits::kMaxTileRank)
    return Invalid(absl::StrCat("more than ", 4 * limits::kMaxTileRank, " axes used"));
  for (const AxisRefProto& ref : refs) {
    if (ref.mesh_axis_index() < 0 || ref.mesh_axis_index() >= static_cast<int64_t>(axes_.size())) {
      return Invalid(absl::StrCat("axis ", ref.mesh_axis_index(), " of a mesh of ", axes_.size(), " axes"));
    }
    if (!ref.has_sub_axis_info()) continue;
    Axis& axis = axes_[ref.mesh_axis_index()];
    const int64_t pre = ref.sub_axis_info().pre_size();
    const int64_t size = ref.sub_axis_info().size();
    if (pre < 1 || size < 1 || pre > axis.size || size > axis.size / pre || axis.size % (pre * size) != 0) {
      return Invalid(absl::StrCat("part (", pre, ")", size, " of an axis of size ", axis.size));
    }
    axis.cuts.push_back(pre);
    axis.cuts.push_back(pre * size);
  }
  return absl::OkStatus();
}

absl::Status CutMesh::Finish() {
  for (Axis& axis : axes_) {
    std::sort(axis.cuts.begin(), axis.cuts.end());
    axis.cuts.erase(std::unique(axis.cuts.begin(), axis.cuts.end()), axis.cuts.end());
    axis.first_factor = static_cast<int>(factors_.size());
    for (size_t i = 1; i < axis.cuts.size(); ++i) {
      if (axis.cuts[i] % axis.cuts[i - 1] != 0) {
        return Invalid(absl::StrCat("an axis of size ", axis.size, " is cut both at ", axis.cuts[i - 1], " and at ",
                                    axis.cuts[i]));
      }
      factors_.push_back(axis.cuts[i] / axis.cuts[i - 1]);
    }
  }
  taken_.assign(factors_.size(), false);
  return absl::OkStatus();
}

std::pair<int64_t, int64_t> CutMesh::Ends(const AxisRefProto& ref, const Axis& axis) {
  if (!ref.has_sub_axis_info()) return {1, axis.size};
  return {ref.sub_axis_info().pre_size(), ref.sub_axis_info().pre_size() * ref.sub_axis_info().size()};
}

absl::StatusOr<int64_t> CutMesh::Take(const AxisRefs& refs) {
  int64_t product = 1;
  for (const AxisRefProto& ref : refs) {
    const Axis& axis = axes_[ref.mesh_axis_index()];
    const auto [begin, end] = Ends(ref, axis);
    for (size_t i = 0; i + 1 < axis.cuts.size(); ++i) {
      if (axis.cuts[i] < begin || axis.cuts[i] >= end) continue;
      const int factor = axis.first_factor + static_cast<int>(i);
      if (taken_[factor]) return Invalid(absl::StrCat("axis ", ref.mesh_axis_index(), " is used twice"));
      taken_[factor] = true;
      order_.push_back(factor);
      product *= factors_[factor];
    }
  }
  return product;
}

int64_t CutMesh::TakeRest() {
  int64_t product = 1;
  for (size_t factor = 0; factor < factors_.size(); ++factor) {
    if (taken_[factor]) continue;
    order_.push_back(static_cast<int32_t>(factor));
    product *= factors_[factor];
  }
  return product;
}

// Fills in which device lies where, for a mesh that lists its devices or transforms their order.
absl::Status SetDevices(const xla::MeshProto& mesh, const TileAssignment& tiles, OpSharding* out) {
  if (mesh.has_iota_transform() && mesh.device_ids_size() > 0) {
    return Invalid("the mesh gives its devices twice, as a list and as an iota");
  }
  const int64_t flat[] = {tiles.num_tiles()};
  std::vector<int64_t> ids(mesh.device_ids().begin(), mesh.device_ids().end());
  if (mesh.has_iota_transform()) {
    const auto& transform = mesh.iota_transform();
    if (transform.transpose_perm_size() > limits::kMaxTileRank)
      return Invalid("the mesh's iota has too many dimensions");
    std::vector<int32_t> perm;
    for (int64_t axis : transform.transpose_perm()) {
      perm.push_back(static_cast<int32_t>(std::clamp<int64_t>(axis, -1, limits::kMaxTileRank)));
    }
    PARKWAY_ASSIGN_OR_RETURN(auto iota, TileAssignment::Iota(flat, transform.reshape_dims(), perm));
    for (int i = 0; i < iota.num_tiles(); ++i) ids.push_back(iota.PositionOf(i));
  }
  PARKWAY_RETURN_IF_ERROR(TileAssignment::Listed(flat, ids).status());
  for (int tile = 0; tile < tiles.num_tiles(); ++tile) out->add_tile_assignment_devices(ids[tiles.PositionOf(tile)]);
  return absl::OkStatus();
}

OpSharding OfType(OpSharding::Type type) {
  OpSharding out;
  out.set_type(type);
  return out;
}

absl::StatusOr<OpSharding> Tile(const xla::MeshProto& mesh, const CutMesh& cut, const Dims& grid) {
  OpSharding out = OfType(OpSharding::OTHER);
  out.mutable_tile_assignment_dimensions()->Assign(grid.begin(), grid.end());
  Dims reshape = cut.factors();
  std::vector<int32_t> perm = cut.order();
  if (reshape.empty()) {
    reshape.push_back(1);
    perm.push_back(0);
  }
  PARKWAY_ASSIGN_OR_RETURN(auto tiles, TileAssignment::Iota(grid, reshape, perm));
  if (mesh.device_ids_size() > 0 || mesh.has_iota_transform()) {
    PARKWAY_RETURN_IF_ERROR(SetDevices(mesh, tiles, &out));
    return out;
  }
  out.mutable_iota_reshape_dims()->Assign(tiles.reshape().begin(), tiles.reshape().end());
  out.mutable_iota_transpose_perm()->Assign(tiles.perm().begin(), tiles.perm().end());
  return out;
}

absl::Status Flatten(const OpSharding& sharding, size_t num_leaves, std::vector<OpSharding>* leaves) {
  for (const OpSharding& element : sharding.tuple_shardings()) {
    if (element.type() == OpSharding::TUPLE && !element.has_named_sharding()) {
      PARKWAY_RETURN_IF_ERROR(Flatten(element, num_leaves, leaves));
      continue;
    }
    if (leaves->size() == num_leaves) {
      return Invalid(absl::StrCat("a tuple of more than ", num_leaves, " shardings for as many arrays"));
    }
    PARKWAY_ASSIGN_OR_RETURN(leaves->emplace_back(), WithoutNamed(element));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<OpSharding> NamedToTiled(const xla::NamedShardingProto& named, int num_devices) {
  const xla::MeshProto& mesh = named.mesh();
  if (mesh.axes_size() == 0 && mesh.device_ids_size() == 1) {
    OpSharding out = OfType(OpSharding::MAXIMAL);
    out.add_tile_assignment_dimensions(1);
    out.add_tile_assignment_devices(mesh.device_ids(0));
    return out;
  }
  PARKWAY_ASSIGN_OR_RETURN(CutMesh cut, CutMesh::Make(named));
  // A mesh without axes is that of an array which every device has whole.
  if (num_devices != 0 && mesh.axes_size() > 0 && cut.size() != num_devices) {
    return Invalid(absl::StrCat("a mesh of ", cut.size(), " devices for ", num_devices));
  }
  Dims grid;
  int64_t tiles = 1;
  for (const auto& dim : named.dim_shardings()) {
    PARKWAY_ASSIGN_OR_RETURN(grid.emplace_back(), cut.Take(dim.axes()));
    tiles *= grid.back();
  }
  PARKWAY_ASSIGN_OR_RETURN(const int64_t manual, cut.Take(named.manual_axes()));
  PARKWAY_ASSIGN_OR_RETURN(const int64_t unreduced, cut.Take(named.unreduced_axes()));
  const int64_t copies = cut.TakeRest();
  if (tiles * manual * unreduced == 1) return OfType(OpSharding::REPLICATED);
  if (manual == cut.size()) return OfType(OpSharding::MANUAL);
  if (unreduced == cut.size()) return OfType(OpSharding::UNREDUCED);

  std::vector<OpSharding::Type> groups;
  for (const auto& [size, type] : {std::pair(manual, OpSharding::MANUAL), std::pair(unreduced, OpSharding::UNREDUCED),
                                   std::pair(copies, OpSharding::REPLICATED)}) {
    if (size == 1) continue;
    grid.push_back(size);
    groups.push_back(type);
  }
  PARKWAY_ASSIGN_OR_RETURN(OpSharding out, Tile(mesh, cut, grid));
  if (groups.size() == 1 && groups[0] == OpSharding::REPLICATED) {
    out.set_replicate_on_last_tile_dim(true);
  } else {
    for (OpSharding::Type type : groups) out.add_last_tile_dims(type);
  }
  return out;
}

absl::StatusOr<OpSharding> WithoutNamed(const OpSharding& sharding) {
  if (sharding.has_named_sharding()) return NamedToTiled(sharding.named_sharding());
  OpSharding out = sharding;
  for (OpSharding& element : *out.mutable_tuple_shardings()) {
    PARKWAY_ASSIGN_OR_RETURN(OpSharding converted, WithoutNamed(element));
    element = std::move(converted);
  }
  return out;
}

absl::StatusOr<std::vector<OpSharding>> FlattenTuple(const OpSharding& sharding, int num_leaves) {
  std::vector<OpSharding> leaves;
  if (sharding.has_named_sharding() || sharding.type() != OpSharding::TUPLE) {
    PARKWAY_ASSIGN_OR_RETURN(OpSharding leaf, WithoutNamed(sharding));
    leaves.assign(num_leaves, leaf);
    return leaves;
  }
  PARKWAY_RETURN_IF_ERROR(Flatten(sharding, num_leaves, &leaves));
  if (static_cast<int>(leaves.size()) != num_leaves) {
    return Invalid(absl::StrCat("a tuple of ", leaves.size(), " shardings for ", num_leaves, " arrays"));
  }
  return leaves;
}

}  // namespace parkway::ifrt
