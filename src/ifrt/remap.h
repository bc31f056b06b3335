// A remap makes arrays out of shards of other arrays, each shard staying on its device.
#pragma once

#include <vector>

#include "ifrt/array_spec.h"

namespace parkway::ifrt {

// Where an output's shard comes from: shard `input_shard` of input `input`.
struct RemapSource {
  int input = 0;
  int input_shard = 0;
  friend bool operator==(const RemapSource&, const RemapSource&) = default;
};

struct RemapOutput {
  ArraySpec spec;
  std::vector<RemapSource> sources;  // one for each shard
};

struct RemapPlan {
  std::vector<ArraySpec> inputs;
  std::vector<RemapOutput> outputs;
};

}  // namespace parkway::ifrt
