#include "runtime/eviction.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/limits.h"
#include "runtime/wire.h"

namespace parkway::runtime {
namespace {

constexpr absl::Duration kDrainPeriod = absl::Milliseconds(20);  // between looks at what is still in flight

}  // namespace

void Eviction::OnSessionClosed(uint64_t session) {
  if (core_->engines->HostsWithLaunches(session).empty()) return;
  core_->options.executor->After(limits::kEndlessProgramGrace, [this, session, alive = alive_] {
    if (!*alive) return;
    for (int host : core_->engines->HostsWithLaunches(session)) Start(session, host);
  });
}

void Eviction::Start(uint64_t session, int host) {
  if (hosts_.contains(host) || core_->engines->state(host) != HostState::kUp) return;
  Host& state = hosts_[host];
  state.incarnation = core_->engines->incarnation(host);
  core_->engines->Pause(host);
  Drain(session, host, state.incarnation, core_->options.executor->Now() + limits::kEvictionDrain);
}

void Eviction::Drain(uint64_t session, int host, uint64_t incarnation, absl::Time until) {
  auto it = hosts_.find(host);
  if (it == hosts_.end() || it->second.incarnation != incarnation) return;  // it went down by itself
  const std::vector<const InFlight*> in_flight = core_->engines->InFlightOn(host);
  const bool others =
      std::any_of(in_flight.begin(), in_flight.end(), [&](const InFlight* entry) { return entry->session != session; });
  if (!others || core_->options.executor->Now() >= until) return CopyOut(session, host);
  core_->options.executor->After(kDrainPeriod, [this, session, host, incarnation, until, alive = alive_] {
    if (*alive) Drain(session, host, incarnation, until);
  });
}

void Eviction::CopyOut(uint64_t session, int host) {
  Host& state = hosts_[host];
  std::vector<std::pair<BuffersRef, int>> wanted;
  core_->engines->ForEachBuffers([&](Buffers& buffers) {
    if (buffers.session() == session || !buffers.on_engines || buffers.donated || !buffers.settled()) return;
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
  for (auto& [buffers, device] : wanted) {
    core_->engines->Read(buffers->session(), *buffers, device, true,
                         [find, copied, weak = std::weak_ptr<Buffers>(buffers), id = buffers->id(),
                          device = device](absl::StatusOr<Bytes> bytes) {
                           Host* found = find();
                           if (found != nullptr && bytes.ok()) {
                             found->saved[{id, device}] = Saved{weak, *std::move(bytes)};
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
  core_->options.restart_engine(host, it->second.incarnation, "a program of a session that is gone did not end");
}

bool Eviction::Spares(const Buffers& buffers, int device) const {
  auto it = hosts_.find(core_->options.topology.device(device).host);
  return it != hosts_.end() && it->second.saved.contains({buffers.id(), device});
}

void Eviction::OnEngineUp(int host) {
  auto it = hosts_.find(host);
  if (it == hosts_.end()) return;
  Host state = std::move(it->second);
  hosts_.erase(it);
  std::map<uint64_t, Op> puts;  // one for each array: all of its shards on this host
  std::map<uint64_t, std::vector<uint64_t>> offered;
  std::map<uint64_t, BuffersRef> arrays;
  for (auto& [key, saved] : state.saved) {
    BuffersRef buffers = saved.buffers.lock();
    if (buffers == nullptr) continue;
    const ArraySpec& spec = buffers->spec();
    int position = *buffers->devices()->Position(key.second);
    absl::StatusOr<ifrt::Shape> shape = spec.sharding->ShardShape(spec.shape, position);
    if (!shape.ok()) continue;
    Put* put = puts[key.first].mutable_put();
    put->set_array(key.first);
    if (spec.sharding->memory_kind().has_value()) put->set_memory_kind(*spec.sharding->memory_kind());
    PutShard* shard = put->add_shards();
    shard->set_device(key.second);
    shard->set_source(put->sources_size());
    EncodeType(spec.dtype, shape->dims(), shard->mutable_type());
    HostSource* source = put->add_sources();
    *source->mutable_type() = shard->type();
    if (saved.bytes.size <= limits::kInlinePutBytes) {
      source->set_inline_bytes(std::string(saved.bytes.view()));
    } else {
      *source->mutable_transfer() = core_->options.transfers->Offer(std::move(saved.bytes));
      offered[key.first].push_back(source->transfer().id());
    }
    arrays[key.first] = std::move(buffers);
  }
  for (auto& [id, op] : puts) {
    InFlight entry{.hosts = {host}, .what = "return of an array"};
    entry.done = [this, host, buffers = arrays[id], ids = offered[id]](const absl::Status& end) {
      for (uint64_t transfer : ids) core_->options.transfers->Drop(transfer);
      if (end.ok()) return;
      for (int device : core_->options.topology.hosts()[host].devices) {
        if (buffers->devices()->Contains(device)) buffers->Fail(device, end);
      }
    };
    core_->engines->Issue(std::move(op), std::move(entry));
  }
}

}  // namespace parkway::runtime
