#include "engine/sim/sim_world.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"

namespace parkway::engine {
namespace {

absl::Status Complaint(const std::string& program) {
  return absl::UnknownError(absl::StrCat("Gloo all-reduce failed in ", program, ": Connection closed by peer"));
}

}  // namespace

void SimWorld::Arrive(uint64_t context, int members, int64_t launch, int rank, const std::string& program, Done done) {
  if (left_.contains(context)) return done(Complaint(program));
  Meeting& meeting = meetings_[{context, launch}];
  meeting.arrived[rank] = {program, std::move(done)};
  if (static_cast<int>(meeting.arrived.size()) < members) return;
  Meeting met = std::move(meeting);
  meetings_.erase({context, launch});
  const bool same = std::all_of(met.arrived.begin(), met.arrived.end(),
                                [&](const auto& member) { return member.second.first == program; });
  if (!same) ++mismatched_;
  const absl::Status status =
      same ? absl::OkStatus() : absl::AbortedError("the members of a collective launched different programs");
  for (auto& [member, arrival] : met.arrived) arrival.second(status);
}

void SimWorld::Leave(uint64_t context, int rank) {
  left_[context].insert(rank);
  std::vector<Meeting> broken;
  for (auto it = meetings_.lower_bound({context, 0}); it != meetings_.end() && it->first.first == context;) {
    it->second.arrived.erase(rank);
    broken.push_back(std::move(it->second));
    it = meetings_.erase(it);
  }
  for (Meeting& meeting : broken) {
    for (auto& [member, arrival] : meeting.arrived) arrival.second(Complaint(arrival.first));
  }
}

}  // namespace parkway::engine
