// The names by which flags ask for slices: "cpu:2x4" is 2 hosts of 4 devices each. Google's names are chips in a torus
// ("tpuv5e:2x4", "tpuv4:2x2x2_untwisted"); they are split into hosts as GKE's node pools are. Pure functions, any
// thread.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace parkway {
class SliceType;
}

namespace parkway::manager {

// INVALID_ARGUMENT quoting `name` and saying what is wanted.
absl::StatusOr<SliceType> ParseSliceType(const std::string& name);

// "cpu:1x2,cpu:1x2": at least one.
absl::StatusOr<std::vector<SliceType>> ParseSliceTypes(const std::string& names);

// "cpu:2x4", always hosts x devices.
std::string SliceTypeName(const SliceType& type);

bool SameSliceType(const SliceType& a, const SliceType& b);

}  // namespace parkway::manager
