#include "ifrt/tile_assignment.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "base/limits.h"

namespace parkway::ifrt {
namespace {

using Perm = absl::InlinedVector<int32_t, 6>;

absl::Status Invalid(absl::string_view text) {
  return absl::InvalidArgumentError(absl::StrCat("tile assignment: ", text));
}

// The product of sizes that must all be positive, inside the limits on ranks and devices.
absl::StatusOr<int64_t> Product(absl::string_view what, absl::Span<const int64_t> sizes) {
  if (sizes.size() > static_cast<size_t>(limits::kMaxTileRank)) {
    return Invalid(absl::StrCat(what, " has ", sizes.size(), " dimensions, the most is ", limits::kMaxTileRank));
  }
  int64_t product = 1;
  for (int64_t size : sizes) {
    if (size <= 0) return Invalid(absl::StrCat(what, " ", DimsToString(sizes), " has a size below 1"));
    if (size > limits::kMaxDevicesPerSharding / product) {
      return Invalid(
          absl::StrCat(what, " ", DimsToString(sizes), " has more than ", limits::kMaxDevicesPerSharding, " tiles"));
    }
    product *= size;
  }
  return product;
}

absl::Status CheckPerm(absl::Span<const int32_t> perm, size_t rank) {
  bool valid = perm.size() == rank;
  absl::InlinedVector<bool, 16> seen(rank, false);
  for (size_t i = 0; valid && i < rank; ++i) {
    valid = perm[i] >= 0 && static_cast<size_t>(perm[i]) < rank && !seen[perm[i]];
    if (valid) seen[perm[i]] = true;
  }
  if (valid) return absl::OkStatus();
  return Invalid(
      absl::StrCat("[", absl::StrJoin(perm.subspan(0, 16), ","), "] is no permutation of ", rank, " iota dimensions"));
}

// Drops sizes of 1 and merges axes that follow each other before and after the transposition.
void LowestTerms(absl::Span<const int64_t> reshape, absl::Span<const int32_t> perm, Dims* out_reshape, Perm* out_perm) {
  absl::InlinedVector<int32_t, 6> order;  // perm without axes of size 1
  for (int32_t axis : perm) {
    if (reshape[axis] != 1) order.push_back(axis);
  }
  // The next axis that isn't of size 1, before the transposition.
  auto next = [&](int32_t axis) {
    do {
      ++axis;
    } while (static_cast<size_t>(axis) < reshape.size() && reshape[axis] == 1);
    return axis;
  };
  Dims merged(reshape.size(), 0);  // size of the group that begins at this axis
  absl::InlinedVector<int32_t, 6> heads;
  for (size_t i = 0; i < order.size(); ++i) {
    if (i > 0 && next(order[i - 1]) == order[i]) {
      merged[heads.back()] *= reshape[order[i]];
    } else {
      heads.push_back(order[i]);
      merged[order[i]] = reshape[order[i]];
    }
  }
  absl::InlinedVector<int32_t, 6> number(reshape.size(), -1);
  for (size_t axis = 0; axis < reshape.size(); ++axis) {
    if (merged[axis] == 0) continue;
    number[axis] = static_cast<int32_t>(out_reshape->size());
    out_reshape->push_back(merged[axis]);
  }
  for (int32_t head : heads) out_perm->push_back(number[head]);
  if (out_reshape->empty()) {
    out_reshape->push_back(1);
    out_perm->push_back(0);
  }
}

// Row-major digits of `value` in base `sizes`.
Dims Digits(int64_t value, absl::Span<const int64_t> sizes) {
  Dims digits(sizes.size());
  for (size_t i = sizes.size(); i-- > 0;) {
    digits[i] = value % sizes[i];
    value /= sizes[i];
  }
  return digits;
}

}  // namespace

absl::StatusOr<TileAssignment> TileAssignment::Iota(absl::Span<const int64_t> grid) {
  absl::StatusOr<int64_t> tiles = Product("the grid", grid);
  if (!tiles.ok()) return tiles.status();
  return Iota(grid, {*tiles}, {0});
}

absl::StatusOr<TileAssignment> TileAssignment::Iota(absl::Span<const int64_t> grid, absl::Span<const int64_t> reshape,
                                                    absl::Span<const int32_t> perm) {
  absl::StatusOr<int64_t> tiles = Product("the grid", grid);
  if (!tiles.ok()) return tiles.status();
  absl::StatusOr<int64_t> iota = Product("the iota", reshape);
  if (!iota.ok()) return iota.status();
  if (*tiles != *iota) {
    return Invalid(absl::StrCat("the grid ", DimsToString(grid), " and the iota ", DimsToString(reshape),
                                " differ in their number of tiles"));
  }
  if (absl::Status status = CheckPerm(perm, reshape.size()); !status.ok()) return status;
  TileAssignment out;
  out.grid_.assign(grid.begin(), grid.end());
  out.num_tiles_ = static_cast<int>(*tiles);
  LowestTerms(reshape, perm, &out.reshape_, &out.perm_);
  return out;
}

absl::StatusOr<TileAssignment> TileAssignment::Listed(absl::Span<const int64_t> grid,
                                                      absl::Span<const int64_t> positions) {
  absl::StatusOr<int64_t> tiles = Product("the grid", grid);
  if (!tiles.ok()) return tiles.status();
  if (*tiles != static_cast<int64_t>(positions.size())) {
    return Invalid(absl::StrCat("the grid ", DimsToString(grid), " has ", *tiles, " tiles, but ", positions.size(),
                                " positions are listed"));
  }
  auto list = std::make_shared<List>();
  list->positions.reserve(positions.size());
  list->tiles.assign(positions.size(), -1);
  for (int64_t position : positions) {
    if (position < 0 || position >= *tiles || list->tiles[position] >= 0) {
      return Invalid(absl::StrCat("the listed positions are no permutation of 0 to ", *tiles - 1, ": see ", position));
    }
    list->tiles[position] = static_cast<int32_t>(list->positions.size());
    list->positions.push_back(static_cast<int32_t>(position));
  }
  TileAssignment out;
  out.grid_.assign(grid.begin(), grid.end());
  out.num_tiles_ = static_cast<int>(*tiles);
  out.listed_ = std::move(list);
  return out;
}

TileAssignment TileAssignment::Without(absl::Span<const bool> drop) const {
  TileAssignment out = *this;
  out.grid_.clear();
  for (size_t i = 0; i < grid_.size(); ++i) {
    if (!drop[i]) out.grid_.push_back(grid_[i]);
  }
  return out;
}

Dims TileAssignment::TileOf(int position) const {
  if (!is_iota()) return Digits(listed_->tiles[position], grid_);
  const Dims digits = Digits(position, reshape_);
  int64_t tile = 0;
  for (int32_t axis : perm_) tile = tile * reshape_[axis] + digits[axis];
  return Digits(tile, grid_);
}

int TileAssignment::PositionOf(int tile) const {
  if (!is_iota()) return listed_->positions[tile];
  Dims digits(reshape_.size());
  for (size_t i = perm_.size(); i-- > 0;) {
    digits[perm_[i]] = tile % reshape_[perm_[i]];
    tile /= static_cast<int>(reshape_[perm_[i]]);
  }
  int64_t position = 0;
  for (size_t axis = 0; axis < reshape_.size(); ++axis) position = position * reshape_[axis] + digits[axis];
  return static_cast<int>(position);
}

void TileAssignment::AppendKey(std::string* key) const {
  absl::StrAppend(key, "g", absl::StrJoin(grid_, ","));
  if (is_iota()) {
    absl::StrAppend(key, "r", absl::StrJoin(reshape_, ","), "t", absl::StrJoin(perm_, ","));
  } else {
    key->push_back('l');
    key->append(reinterpret_cast<const char*>(listed_->positions.data()), listed_->positions.size() * sizeof(int32_t));
  }
}

}  // namespace parkway::ifrt
