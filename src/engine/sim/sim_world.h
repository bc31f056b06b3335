// Where the collectives of several SimEngines meet. Touched only inside tasks of their one executor.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"

namespace parkway::engine {

class SimWorld {
 public:
  using Done = absl::AnyInvocable<void(absl::Status)>;

  // Member `rank` of `members` has come to its launch number `launch` in `context`. `done` comes when all have, or with
  // a complaint like Gloo's when one can't come any more.
  void Arrive(uint64_t context, int members, int64_t launch, int rank, const std::string& program, Done done);
  // The member's connections are gone.
  void Leave(uint64_t context, int rank);

  int mismatched() const { return mismatched_; }

 private:
  struct Meeting {
    std::map<int, std::pair<std::string, Done>> arrived;  // by rank
  };
  std::map<std::pair<uint64_t, int64_t>, Meeting> meetings_;
  std::map<uint64_t, std::set<int>> left_;
  int mismatched_ = 0;
};

}  // namespace parkway::engine
