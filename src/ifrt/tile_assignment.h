// Which device position each tile of a grid lies on. It is kept as it comes: as iota(reshape) transposed by a
// permutation and reshaped to the grid (a few numbers, whatever the device count), or as a list. Immutable values; any
// thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "ifrt/shape.h"

namespace parkway::ifrt {

class TileAssignment {
 public:
  // The grid in row-major order of positions: iota(product of the grid).
  static absl::StatusOr<TileAssignment> Iota(absl::Span<const int64_t> grid);
  // iota(reshape) transposed by `perm`, reshaped to `grid`.
  static absl::StatusOr<TileAssignment> Iota(absl::Span<const int64_t> grid, absl::Span<const int64_t> reshape,
                                             absl::Span<const int32_t> perm);
  // The position of each tile, in row-major order of the grid: a permutation of 0..n-1.
  static absl::StatusOr<TileAssignment> Listed(absl::Span<const int64_t> grid, absl::Span<const int64_t> positions);

  // The same tiles in the same order, in a grid without those of its dimensions that `drop` says; they must be of
  // size 1.
  TileAssignment Without(absl::Span<const bool> drop) const;

  const Dims& grid() const { return grid_; }
  int num_tiles() const { return num_tiles_; }

  bool is_iota() const { return listed_ == nullptr; }
  // Iota form, in lowest terms: no sizes of 1, no axes that stay neighbours. One axis for a plain iota.
  const Dims& reshape() const { return reshape_; }
  absl::Span<const int32_t> perm() const { return perm_; }
  // Listed form.
  absl::Span<const int32_t> positions() const { return listed_->positions; }

  // The place in the grid of the tile on `position`, 0 <= position < num_tiles().
  Dims TileOf(int position) const;
  // The position of the tile of that number, in row-major order of the grid.
  int PositionOf(int tile) const;

  // Equal exactly when the form is: an iota and a list of the same numbers have different keys.
  void AppendKey(std::string* key) const;

 private:
  struct List {
    std::vector<int32_t> positions;  // of tiles
    std::vector<int32_t> tiles;      // of positions
  };

  Dims grid_;
  int num_tiles_ = 1;
  Dims reshape_;
  absl::InlinedVector<int32_t, 6> perm_;
  std::shared_ptr<const List> listed_;
};

}  // namespace parkway::ifrt
