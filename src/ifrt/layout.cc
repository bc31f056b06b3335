#include "ifrt/layout.h"

#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/limits.h"

namespace parkway::ifrt {

Layout Layout::RowMajor(int rank) {
  Layout layout;
  for (int i = rank; i-- > 0;) layout.minor_to_major_.push_back(i);
  return layout;
}

absl::StatusOr<Layout> Layout::Make(absl::Span<const int64_t> minor_to_major) {
  const size_t rank = minor_to_major.size();
  if (rank > static_cast<size_t>(limits::kMaxRank)) {
    return absl::InvalidArgumentError(absl::StrCat("a layout of rank ", rank, ": the most is ", limits::kMaxRank));
  }
  absl::InlinedVector<bool, 8> seen(rank, false);
  Layout layout;
  for (int64_t dim : minor_to_major) {
    if (dim < 0 || dim >= static_cast<int64_t>(rank) || seen[dim]) {
      return absl::InvalidArgumentError(
          absl::StrCat("layout {", absl::StrJoin(minor_to_major, ","), "} is no permutation of ", rank, " dimensions"));
    }
    seen[dim] = true;
    layout.minor_to_major_.push_back(static_cast<int32_t>(dim));
  }
  return layout;
}

absl::StatusOr<Layout> Layout::Parse(absl::string_view text) {
  absl::string_view body = absl::StripAsciiWhitespace(text);
  const auto invalid = [&] {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", text.substr(0, 128), "\" is no layout: expected such as {1,0}"));
  };
  if (!absl::ConsumePrefix(&body, "{") || !absl::ConsumeSuffix(&body, "}")) return invalid();
  if (body.find(':') != absl::string_view::npos) {
    return absl::UnimplementedError(absl::StrCat("layout \"", text.substr(0, 128),
                                                 "\": Parkway's arrays are dense, without tiles or memory spaces"));
  }
  std::vector<int64_t> minor_to_major;
  if (!absl::StripAsciiWhitespace(body).empty()) {
    for (absl::string_view part : absl::StrSplit(body, absl::MaxSplits(',', limits::kMaxRank))) {
      int64_t dim;
      if (!absl::SimpleAtoi(part, &dim)) return invalid();
      minor_to_major.push_back(dim);
    }
  }
  return Make(minor_to_major);
}

bool Layout::IsRowMajor() const {
  for (int i = 0; i < rank(); ++i) {
    if (minor_to_major_[i] != rank() - 1 - i) return false;
  }
  return true;
}

std::string Layout::ToString() const { return absl::StrCat("{", absl::StrJoin(minor_to_major_, ","), "}"); }

}  // namespace parkway::ifrt
