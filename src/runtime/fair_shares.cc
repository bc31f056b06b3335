#include "runtime/fair_shares.h"

#include <algorithm>
#include <utility>

#include "base/limits.h"

namespace parkway::runtime {

namespace {

absl::Duration Expected(const LaunchWork& work) {
  return work.run_time > absl::ZeroDuration() ? work.run_time : limits::kUnknownRunTime;
}

}  // namespace

std::vector<double>& FairShares::ServedUntil(uint64_t session) {
  std::vector<double>& served = served_[session];
  served.resize(lanes_.size(), 0);
  return served;
}

void FairShares::Close(uint64_t session) {
  served_.erase(session);
  for (Lane& lane : lanes_) {
    std::erase_if(lane.recent, [session](const Recent& recent) { return recent.session == session; });
  }
}

void FairShares::Want(Lane& lane, uint64_t session, absl::Time now) {
  std::erase_if(lane.recent, [now, session](const Recent& recent) {
    return recent.session == session || (!recent.waits && now - recent.at >= limits::kShareMemory);
  });
  lane.recent.push_back({session, now, true});
}

void FairShares::StopsWaiting(uint64_t session, const LaunchWork& work) {
  for (int device : work.devices) {
    for (Recent& recent : lanes_[device].recent) {
      if (recent.session == session) recent.waits = false;
    }
  }
}

absl::Duration FairShares::Ahead(const Lane& lane, uint64_t session, absl::Time now) {
  absl::Duration ahead = limits::kAloneAhead;
  for (const Recent& recent : lane.recent) {
    if (recent.session == session) continue;
    if (recent.waits) {
      ahead = std::min(ahead, limits::kBacklogAhead);
    } else if (now - recent.at < limits::kShareMemory) {
      return limits::kSharedAhead;
    }
  }
  return ahead;
}

FairShares::Rank FairShares::RankOf(uint64_t session, const LaunchWork& work, absl::Time now) {
  const std::vector<double>& served = ServedUntil(session);
  double start = 0;
  for (int device : work.devices) {
    Lane& lane = lanes_[device];
    Want(lane, session, now);
    start = std::max({start, served[device], lane.virtual_time});
  }
  return {start, session};
}

bool FairShares::HasRoom(uint64_t session, const LaunchWork& work, absl::Time now) const {
  const absl::Duration expected = Expected(work);
  for (int device : work.devices) {
    const Lane& lane = lanes_[device];
    size_t old = 0;
    absl::Duration ahead = lane.ahead;
    for (; old < lane.launches.size() && now - lane.launches[old].at >= limits::kShareWait; ++old) {
      ahead -= lane.launches[old].expected;
    }
    const size_t launches = lane.launches.size() - old;
    const absl::Duration most = Ahead(lane, session, now);
    if (launches == 0 || ahead + expected <= most) continue;
    if (most < limits::kAloneAhead || launches >= limits::kAloneLaunches) return false;
  }
  return true;
}

FairShares::RunningRef FairShares::Begin(const Rank& rank, LaunchWorkRef work, absl::Time now) {
  const absl::Duration expected = Expected(*work);
  auto running = std::make_shared<Running>(this, rank.second, std::move(work), expected, now);
  std::vector<double>& served = ServedUntil(rank.second);
  for (int device : running->work_->devices) {
    Lane& lane = lanes_[device];
    lane.virtual_time = std::max(lane.virtual_time, rank.first);
    lane.launches.push_back({running.get(), now, expected});
    lane.ahead += expected;
    served[device] = rank.first + absl::ToDoubleSeconds(expected);
  }
  return running;
}

void FairShares::Release(Running& running, int position) {
  if (!running.held_[position]) return;
  running.held_[position] = false;
  Lane& lane = lanes_[running.work_->devices[position]];
  auto at = std::find_if(lane.launches.begin(), lane.launches.end(),
                         [&](const Begun& begun) { return begun.running == &running; });
  lane.launches.erase(at);
  lane.ahead -= running.expected_;
}

FairShares::Running::~Running() {
  if (!*alive_) return;
  for (size_t i = 0; i < held_.size(); ++i) shares_->Release(*this, static_cast<int>(i));
}

void FairShares::Ended(const RunningRef& running, int host, absl::Duration ran) {
  for (size_t i = 0; i < running->held_.size(); ++i) {
    const int device = running->work_->devices[i];
    if (!running->held_[i] || topology_->device(device).host != host) continue;
    Release(*running, static_cast<int>(i));
    ended_.push_back({running, device, ran});
  }
}

void FairShares::Charge(absl::Time now) {
  if (ended_.empty()) return;
  std::stable_sort(ended_.begin(), ended_.end(),
                   [](const EndedOn& a, const EndedOn& b) { return a.device < b.device; });
  for (auto first = ended_.begin(); first != ended_.end();) {
    const auto last = std::find_if(first, ended_.end(), [&](const EndedOn& e) { return e.device != first->device; });
    Lane& lane = lanes_[first->device];
    absl::Duration expected;
    absl::Time begun = absl::InfiniteFuture();
    for (auto e = first; e != last; ++e) {
      expected += e->running->expected_;
      begun = std::min(begun, e->running->begun_);
    }
    // The device worked since then for all of them together; who took how much of it is known by what they took before.
    const absl::Duration worked = std::max(now - std::max(begun, lane.last_end), absl::Nanoseconds(1));
    for (auto e = first; e != last; ++e) {
      const Running& running = *e->running;
      // No longer than it ran, since the device may have waited for it to be sent.
      const absl::Duration took = std::min(worked * absl::FDivDuration(running.expected_, expected), e->ran);
      if (auto served = served_.find(running.session_); served != served_.end()) {
        served->second[e->device] += absl::ToDoubleSeconds(took - running.expected_);
      }
      for (Recent& recent : lane.recent) {
        if (recent.session == running.session_) recent.at = now;
      }
      // The mean, since ends that come in pairs look long and short in turns.
      absl::Duration& known = running.work_->run_time;
      known = known == absl::ZeroDuration() ? took : known + (took - known) / 4;
    }
    lane.last_end = now;
    first = last;
  }
  ended_.clear();
}

}  // namespace parkway::runtime
