#include "runtime/eviction.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/limits.h"

namespace parkway::runtime {
namespace {

constexpr absl::Duration kDrainPeriod = absl::Milliseconds(20);  // between looks at what is still in flight

absl::Status LossOfCopy(const std::string& where, const absl::Status& why) {
  return absl::AbortedError(absl::StrCat("the engine of ", where,
                                         " is started again, to be rid of a program that did not end, and the array "
                                         "could not be kept meanwhile: ",
                                         why.message(), ". Make it once more"));
}

}  // namespace

void Eviction::OnSessionClosed(uint64_t session) {
  core_->engines->Cancel(session, "its session is gone");
  EndLater(session, session, "a program of a session that is gone did not end");
}

void Eviction::Cancel(uint64_t session, const std::string& by) {
  core_->engines->Cancel(session, by);
  EndLater(session, /*session_gone=*/0, absl::StrCat("a program did not end after it was cancelled: ", by));
}

void Eviction::EndLater(uint64_t session, uint64_t session_gone, std::string reason) {
  if (core_->engines->HostsWithCancelled(session).empty()) return;
  core_->options.executor->After(limits::kEndlessProgramGrace,
                                 [this, session, session_gone, reason = std::move(reason), alive = alive_] {
                                   if (!*alive) return;
                                   for (int host : core_->engines->HostsWithCancelled(session))
                                     Start(host, session_gone, reason);
                                 });
}

void Eviction::Start(int host, uint64_t session_gone, std::string reason) {
  if (hosts_.contains(host) || core_->engines->state(host) != HostState::kUp) return;
  Host& state = hosts_[host];
  state.session_gone = session_gone;
  state.reason = std::move(reason);
  state.incarnation = core_->engines->incarnation(host);
  core_->engines->Pause(host);
  Drain(host, state.incarnation, core_->options.executor->Now() + limits::kEvictionDrain);
}

void Eviction::Drain(int host, uint64_t incarnation, absl::Time until) {
  auto it = hosts_.find(host);
  if (it == hosts_.end() || it->second.incarnation != incarnation) return;  // it went down by itself
  const std::vector<const InFlight*> in_flight = core_->engines->InFlightOn(host);
  const bool others =
      std::any_of(in_flight.begin(), in_flight.end(), [](const InFlight* entry) { return entry->cancelled.ok(); });
  if (!others || core_->options.executor->Now() >= until) return CopyOut(host);
  core_->options.executor->After(kDrainPeriod, [this, host, incarnation, until, alive = alive_] {
    if (*alive) Drain(host, incarnation, until);
  });
}

void Eviction::CopyOut(int host) {
  Host& state = hosts_[host];
  std::vector<std::pair<BuffersRef, int>> wanted;
  core_->engines->ForEachBuffers([&](Buffers& buffers) {
    if (buffers.session() == state.session_gone || !buffers.on_engines || buffers.donated || !buffers.settled()) return;
    if (core_->engines->Outlives(buffers, host)) return;
    for (int device : core_->options.topology.hosts()[host].devices) {
      if (!buffers.devices()->Contains(device) || !buffers.ShardError(device).ok()) continue;
      if (buffers.wholes == 0 && !buffers.refs_by_device.contains(device)) continue;
      wanted.emplace_back(buffers.shared_from_this(), device);
    }
  });
  state.copies_left = static_cast<int>(wanted.size()) + 1;
  // What comes late may find the next eviction of that host.
  auto find = [this, host, incarnation = state.incarnation, alive = alive_]() -> Host* {
    if (!*alive) return nullptr;
    auto it = hosts_.find(host);
    return it != hosts_.end() && it->second.incarnation == incarnation ? &it->second : nullptr;
  };
  auto copied = [this, host, find] {
    if (Host* found = find(); found != nullptr && --found->copies_left == 0) Restart(host);
  };
  const std::string where = core_->options.topology.DescribeHost(host);
  for (auto& [buffers, device] : wanted) {
    core_->engines->Keep(*buffers, device,
                         [find, copied, where, weak = std::weak_ptr<Buffers>(buffers), id = buffers->id(),
                          device = device](const absl::Status& end) {
                           Host* found = find();
                           if (found != nullptr && end.ok()) found->kept.emplace(id, device);
                           if (BuffersRef lost = weak.lock(); found != nullptr && !end.ok() && lost != nullptr) {
                             lost->Fail(device, LossOfCopy(where, end));
                           }
                           copied();
                         });
  }
  core_->options.executor->After(limits::kEvictionCopies, [this, host, find] {
    if (find() != nullptr) Restart(host);  // with what has been copied so far
  });
  copied();
}

void Eviction::Restart(int host) {
  auto it = hosts_.find(host);
  if (it == hosts_.end() || it->second.restarting) return;
  it->second.restarting = true;
  core_->options.restart_engine(host, it->second.incarnation, it->second.reason);
}

bool Eviction::Spares(const Buffers& buffers, int device) const {
  auto it = hosts_.find(core_->options.topology.device(device).host);
  return it != hosts_.end() && it->second.kept.contains({buffers.id(), device});
}

}  // namespace parkway::runtime
