// The order of an array's dimensions in memory, and XLA's text for it: "{1,0}" is row-major for two dimensions. Layouts
// with tiles, memory spaces or sub-byte packing are not Parkway's: on its wire and in its buffers every array is dense.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace parkway::ifrt {

class Layout {
 public:
  static Layout RowMajor(int rank);
  // INVALID_ARGUMENT unless it is a permutation of 0..n-1, n <= limits::kMaxRank.
  static absl::StatusOr<Layout> Make(absl::Span<const int64_t> minor_to_major);
  // UNIMPLEMENTED for what follows a colon (tiles and the like), INVALID_ARGUMENT for text that is no layout.
  static absl::StatusOr<Layout> Parse(absl::string_view text);

  absl::Span<const int32_t> minor_to_major() const { return minor_to_major_; }
  int rank() const { return static_cast<int>(minor_to_major_.size()); }
  bool IsRowMajor() const;
  std::string ToString() const;

  friend bool operator==(const Layout&, const Layout&) = default;

 private:
  std::vector<int32_t> minor_to_major_;
};

}  // namespace parkway::ifrt
