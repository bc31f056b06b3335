// Whose launch goes next. A client that dispatches without end must leave the others their equal share of the devices
// that they use too, so launches wait here rather than in the engines, where nobody could overtake them. Start-time
// fair queueing, device by device: a launch begins at the virtual time up to which its session was served there, or,
// where that is later, at the device's own; the lowest begins next. It ends later by the time that its devices worked
// for it.
//
// How much is in an engine at once: enough that no device waits for the proxy. A session alone on its devices has
// limits::kAloneAhead of work or kAloneLaunches launches there; all that share them kBacklogAhead while each has more
// waiting, and kSharedAhead while one hasn't, since the others' work there is what its next launch will stand behind. A
// launch that runs for longer than limits::kShareWait holds up nobody: it doesn't count any more.
//
// No deadlock: the order of those that wait is total, whatever devices they need, so that the lowest waits for nothing
// but launches that are with the engines, and those wait for none that isn't.
//
// Owned by the sequencer; used inside tasks of the core's executor only.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "runtime/topology.h"

namespace parkway::runtime {

// What the launches of a program take of the devices.
struct LaunchWork {
  std::string what;  // "program 'jit_step'", for messages
  std::vector<int> devices;
  absl::Duration run_time;  // of one launch on each of them, as measured; zero: not yet
};
using LaunchWorkRef = std::shared_ptr<LaunchWork>;

class FairShares {
 public:
  // A place in the virtual order; the session breaks ties.
  using Rank = std::pair<double, uint64_t>;
  // A launch that was begun. Gives back what it holds when destroyed.
  class Running;
  using RunningRef = std::shared_ptr<Running>;

  explicit FairShares(const Topology* topology) : topology_(topology), lanes_(topology->devices().size()) {}
  ~FairShares() { *alive_ = false; }

  void Close(uint64_t session);

  // Where a launch stands that waits for its turn from now on.
  Rank RankOf(uint64_t session, const LaunchWork& work, absl::Time now);
  // It waits no more: it begins, or it never will.
  void StopsWaiting(uint64_t session, const LaunchWork& work);
  // Is there room for it on all of its devices?
  bool HasRoom(uint64_t session, const LaunchWork& work, absl::Time now) const;
  RunningRef Begin(const Rank& rank, LaunchWorkRef work, absl::Time now);
  // The launch has ended on that host, where it ran no longer than `ran`. Ends that are learnt together are charged
  // together, by Charge.
  void Ended(const RunningRef& running, int host, absl::Duration ran);
  void Charge(absl::Time now);

 private:
  struct Begun {
    const Running* running = nullptr;
    absl::Time at;
    absl::Duration expected;
  };
  struct Recent {
    uint64_t session = 0;
    absl::Time at;
    bool waits = false;
  };
  // One device.
  struct Lane {
    double virtual_time = 0;      // seconds
    std::vector<Begun> launches;  // not ended, oldest first
    absl::Duration ahead;         // what they are expected to take
    absl::Time last_end = absl::InfinitePast();
    std::vector<Recent> recent;  // who waits for it, or used it within limits::kShareMemory
  };
  struct EndedOn {
    RunningRef running;
    int device = 0;
    absl::Duration ran;
  };

  std::vector<double>& ServedUntil(uint64_t session);
  static void Want(Lane& lane, uint64_t session, absl::Time now);
  // How much of its work, and others', may be with a device before another launch of that session.
  static absl::Duration Ahead(const Lane& lane, uint64_t session, absl::Time now);
  void Release(Running& running, int position);

  const Topology* topology_;
  std::vector<Lane> lanes_;
  absl::flat_hash_map<uint64_t, std::vector<double>> served_;  // until which virtual time, by device
  std::vector<EndedOn> ended_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

class FairShares::Running {
 public:
  Running(FairShares* shares, uint64_t session, LaunchWorkRef work, absl::Duration expected, absl::Time begun)
      : shares_(shares),
        alive_(shares->alive_),
        session_(session),
        work_(std::move(work)),
        expected_(expected),
        begun_(begun),
        held_(work_->devices.size(), true) {}
  ~Running();
  Running(const Running&) = delete;
  Running& operator=(const Running&) = delete;

 private:
  friend class FairShares;
  FairShares* shares_;
  std::shared_ptr<bool> alive_;
  const uint64_t session_;
  const LaunchWorkRef work_;
  const absl::Duration expected_;  // on each device
  const absl::Time begun_;
  std::vector<bool> held_;  // by position in work_->devices
};

}  // namespace parkway::runtime
