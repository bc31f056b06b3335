// ManagerState's half about leases: requests, placement, engines' starts and stops, taking over what a former manager
// gave.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/limits.h"
#include "base/status_wire.h"
#include "glog/logging.h"
#include "manager/manager_state.h"
#include "manager/slice_type.h"

namespace parkway::manager {
namespace {

constexpr size_t kTokenBytes = 16;

absl::Status CheckRequest(const LeaseRequest& request) {
  if (request.slices_size() < 1 || request.slices_size() > limits::kMaxSlicesPerLease) {
    return absl::InvalidArgumentError(absl::StrCat("a lease of ", request.slices_size(), " slices was asked for; 1 to ",
                                                   limits::kMaxSlicesPerLease, " are possible (--virtual_slices)"));
  }
  if (request.owner().size() > limits::kMaxNameBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("a lease request's owner is longer than ", limits::kMaxNameBytes, " bytes"));
  }
  for (const SliceType& type : request.slices()) {
    if (type.platform().empty() || type.platform().size() > limits::kMaxNameBytes || type.hosts() < 1 ||
        type.devices_per_host() < 1) {
      return absl::InvalidArgumentError(
          absl::StrCat("slice type ", SliceTypeName(type), " of a lease request has no platform, hosts or devices"));
    }
  }
  return absl::OkStatus();
}

// "slice-2" before "slice-10": what ends in a number goes by it, among names that are equal but for that.
bool NameBefore(const std::string& a, const std::string& b) {
  const auto stem = [](const std::string& name) { return name.find_last_not_of("0123456789") + 1; };
  return std::make_tuple(a.substr(0, stem(a)), a.size(), a) < std::make_tuple(b.substr(0, stem(b)), b.size(), b);
}

// How many slices of each type, by its name.
std::map<std::string, std::pair<SliceType, int>> Wanted(const LeaseRequest& request) {
  std::map<std::string, std::pair<SliceType, int>> wanted;
  for (const SliceType& type : request.slices()) {
    auto& [stored, count] = wanted[SliceTypeName(type)];
    stored = type;
    ++count;
  }
  return wanted;
}

}  // namespace

void ManagerState::Request(StreamId stream, const LeaseRequest& request) {
  if (absl::Status status = CheckRequest(request); !status.ok()) {
    RefuseProxy(stream, status);
    return;
  }
  if (TakeOver(stream, request)) return;
  const bool resume = CanResume(request.held());
  const bool remembered = IsRemembered(request.held());
  Lease lease;
  // One that still waited keeps its place; what was placed and can't be taken over is another lease from now on.
  const bool same = resume || (remembered && request.held().slices().empty());
  lease.id = same ? request.held().lease() : options_.random();
  lease.token = same ? request.held().token() : "";
  lease.epoch = same && remembered ? remembered_.at(lease.id).epoch() : next_epoch_++;
  if (remembered) remembered_.erase(request.held().lease());
  while (lease.token.size() < kTokenBytes) {
    const uint64_t bits = options_.random();
    lease.token.append(reinterpret_cast<const char*>(&bits), sizeof(bits));
  }
  lease.stream = stream;
  lease.request = request;
  lease.request.clear_held();
  streams_.at(stream).lease = lease.id;
  Lease& stored = leases_[lease.id] = std::move(lease);
  if (resume) {
    Resume(stored, request.held());
  } else {
    const auto later = std::find_if(waiting_.begin(), waiting_.end(),
                                    [&](uint64_t id) { return leases_.at(id).epoch > stored.epoch; });
    waiting_.insert(later, stored.id);
    LOG(INFO) << "Lease " << Hex(stored.id) << " asked for by " << request.owner() << ": " << request.slices_size()
              << " slices";
  }
}

// A proxy whose connection was made again before the end of its old one came to notice keeps its lease.
bool ManagerState::TakeOver(StreamId stream, const LeaseRequest& request) {
  auto it = leases_.find(request.held().lease());
  if (it == leases_.end() || it->second.token != request.held().token()) return false;
  Lease& lease = it->second;
  EndStream(lease.stream, absl::AbortedError("the proxy has connected anew"));
  lease.stream = stream;
  lease.dirty = true;
  streams_.at(stream).lease = lease.id;
  return true;
}

// ---- A lease of a former manager ---------------------------------------------------------------------------------

bool ManagerState::IsRemembered(const Placement& held) const {
  const auto it = remembered_.find(held.lease());
  return it != remembered_.end() && it->second.token() == held.token();
}

// Is there a lease of before, asked for earlier than this one, that waited then and whose proxy may still come?
bool ManagerState::EarlierMayComeBack(const Lease& lease) const {
  return std::any_of(remembered_.begin(), remembered_.end(), [&](const auto& entry) {
    const bool placed =
        std::any_of(slices_.begin(), slices_.end(), [&](const auto& slice) { return slice->orphan == entry.first; });
    return !placed && entry.second.epoch() < lease.epoch;
  });
}

bool ManagerState::CanResume(const Placement& held) {
  if (held.lease() == 0 || held.slices().empty() || held.token().size() != kTokenBytes || !Resuming()) return false;
  if (leases_.contains(held.lease())) return false;
  if (remembered_.contains(held.lease()) && !IsRemembered(held)) return false;
  const SliceType& expected = options_.expected_type;
  std::set<std::string> names;
  int added = 0;
  for (const PlacedSlice& placed : held.slices()) {
    if (placed.slice().empty() || placed.slice().size() > limits::kMaxNameBytes) return false;
    if (!names.insert(placed.slice()).second || placed.type().hosts() != placed.hosts_size()) return false;
    const Slice* slice = FindSlice(placed.slice());
    if (slice == nullptr) {
      if (!expected.platform().empty() && !SameSliceType(placed.type(), expected)) return false;
      if (static_cast<int>(slices_.size()) + ++added > SliceLimit()) return false;
      continue;
    }
    if (slice->lease != 0 || !SameSliceType(slice->type, placed.type())) return false;
    if (slice->orphan != 0 && slice->orphan != held.lease()) return false;
  }
  return true;
}

void ManagerState::Resume(Lease& lease, const Placement& held) {
  LOG(INFO) << "Lease " << Hex(lease.id) << " of " << lease.request.owner()
            << " is taken over from before the manager's start.";
  lease.resuming = true;
  for (const PlacedSlice& placed : held.slices()) {
    Slice* slice = FindSlice(placed.slice());
    if (slice == nullptr) slice = *AddSlice(placed.slice(), placed.type());
    slice->lease = lease.id;
    slice->orphan = 0;
    lease.slices.push_back(slice);
    for (size_t i = 0; i < slice->hosts.size(); ++i) {
      Host& host = slice->hosts[i];
      if (host.worker.empty()) host.worker = placed.hosts(static_cast<int>(i)).worker();
      if (host.engine.lease() == lease.id) continue;
      // Its worker may still bring the engine. If not, it was lost together with the former manager.
      host.engine.set_lease(lease.id);
      *host.engine.mutable_cause() =
          ToProto(absl::UnavailableError(absl::StrCat("the engine of worker ", host.worker, " (host ", i, " of ",
                                                      slice->name, ") ended while no manager was there")));
      if (Alive(host)) StartEngine(*slice, host, lease);
    }
  }
}

// ---- Placement ---------------------------------------------------------------------------------------------------

void ManagerState::PlaceWaiting() {
  std::set<const Slice*> kept;
  std::vector<uint64_t> still;
  for (uint64_t id : waiting_) {
    Lease& lease = leases_.at(id);
    if (!EarlierMayComeBack(lease) && Place(lease, &kept)) continue;
    std::string why = WhyWaiting(lease, static_cast<int>(still.size()));
    if (why != lease.waiting_for) lease.dirty = true;
    lease.waiting_for = std::move(why);
    still.push_back(id);
  }
  waiting_ = std::move(still);
}

// Binds all slices or none. When the lease could be met later, the free slices that it could use are `kept` for it.
// By name, so that the virtual slices of a first lease are those of the same number, whoever came first.
bool ManagerState::Place(Lease& lease, std::set<const Slice*>* kept) {
  std::vector<Slice*> named;
  for (auto& slice : slices_) named.push_back(slice.get());
  std::sort(named.begin(), named.end(), [](const Slice* a, const Slice* b) { return NameBefore(a->name, b->name); });
  std::vector<Slice*> found;
  std::set<const Slice*> used = *kept;
  for (const SliceType& type : lease.request.slices()) {
    for (Slice* slice : named) {
      if (slice->lease != 0 || slice->orphan != 0 || !SameSliceType(slice->type, type) || !Ready(*slice)) continue;
      if (!used.insert(slice).second) continue;
      found.push_back(slice);
      break;
    }
  }
  if (static_cast<int>(found.size()) < lease.request.slices_size()) {
    if (CanEverPlace(lease)) *kept = std::move(used);
    return false;
  }
  lease.slices = std::move(found);
  lease.waiting_for.clear();
  lease.dirty = true;
  for (Slice* slice : lease.slices) {
    slice->lease = lease.id;
    for (Host& host : slice->hosts) StartEngine(*slice, host, lease);
  }
  LOG(INFO) << "Lease " << Hex(lease.id) << " of " << lease.request.owner() << " is placed on "
            << absl::StrJoin(lease.slices, ", ",
                             [](std::string* out, const Slice* s) { absl::StrAppend(out, s->name); });
  return true;
}

int ManagerState::Capacity(const SliceType& type) const {
  const int here = static_cast<int>(
      std::count_if(slices_.begin(), slices_.end(), [&](auto& slice) { return SameSliceType(slice->type, type); }));
  return SameSliceType(type, options_.expected_type) ? std::max(here, options_.expected_slices) : here;
}

bool ManagerState::CanEverPlace(const Lease& lease) const {
  const auto wanted = Wanted(lease.request);
  return std::all_of(wanted.begin(), wanted.end(),
                     [&](const auto& want) { return Capacity(want.second.first) >= want.second.second; });
}

std::string ManagerState::WhyWaiting(const Lease& lease, int before) const {
  std::vector<std::string> parts;
  for (const auto& [name, type_and_count] : Wanted(lease.request)) {
    const auto& [type, count] = type_and_count;
    const int capacity = Capacity(type);
    int free = 0, leased = 0;
    for (const auto& slice : slices_) {
      if (!SameSliceType(slice->type, type)) continue;
      const bool taken = slice->lease != 0 || slice->orphan != 0;
      leased += taken;
      free += !taken && Ready(*slice);
    }
    std::string text = absl::StrCat(count, " x ", name, " (", free, " free, ", leased, " leased, ",
                                    capacity - free - leased, " not ready)");
    if (capacity < count) {
      absl::StrAppend(&text, ", which this cluster never has: it has ", capacity, " of them");
      if (!options_.expected_type.platform().empty()) {
        absl::StrAppend(&text, " and expects ", options_.expected_slices, " x ", SliceTypeName(options_.expected_type));
      }
    }
    parts.push_back(std::move(text));
  }
  std::string why = absl::StrJoin(parts, "; ");
  if (before > 0) absl::StrAppend(&why, "; behind ", before, " earlier lease(s)");
  return why;
}

void ManagerState::SendPlacement(Lease& lease) {
  lease.dirty = false;
  ManagerToProxy message;
  Placement& placement = *message.mutable_placement();
  placement.set_lease(lease.id);
  placement.set_token(lease.token);
  placement.set_waiting_for(lease.waiting_for);
  for (size_t i = 0; i < lease.slices.size(); ++i) {
    const Slice& slice = *lease.slices[i];
    PlacedSlice& placed = *placement.add_slices();
    placed.set_index(static_cast<int>(i));
    *placed.mutable_type() = slice.type;
    placed.set_slice(slice.name);
    for (const Host& host : slice.hosts) {
      PlacedHost& h = *placed.add_hosts();
      h.set_worker(host.worker);
      h.set_up(host.engine.up());
      if (host.engine.up()) *h.mutable_engine() = host.engine.endpoint();
      if (!host.engine.up() && host.engine.has_cause()) *h.mutable_cause() = host.engine.cause();
      h.set_returns(!host.engine.up() && Alive(host));
    }
  }
  output_->ToProxy(lease.stream, message);
}

void ManagerState::EndLease(uint64_t id, const std::string& why) {
  auto node = leases_.extract(id);
  if (node.empty()) return;
  const Lease& lease = node.mapped();
  LOG(INFO) << "Lease " << Hex(id) << " of " << lease.request.owner() << " has ended: " << why;
  std::erase(waiting_, id);
  for (Slice* slice : lease.slices) {
    for (Host& host : slice->hosts) {
      StopEngine(host, id, "its lease has ended");
      host.engine.Clear();
    }
    slice->lease = 0;
  }
}

// ---- Engines -----------------------------------------------------------------------------------------------------

void ManagerState::StartEngine(const Slice& slice, const Host& host, const Lease& lease) {
  auto it = workers_.find(host.worker);
  if (it == workers_.end() || it->second.stream == 0) return;
  ManagerToWorker message;
  message.mutable_start()->set_lease(lease.id);
  message.mutable_start()->set_token(lease.token);
  message.mutable_start()->set_devices(slice.type.devices_per_host());
  output_->ToWorker(it->second.stream, message);
}

void ManagerState::StopEngine(const Host& host, uint64_t lease, const std::string& why) {
  auto it = workers_.find(host.worker);
  if (it == workers_.end() || it->second.stream == 0) return;
  ManagerToWorker message;
  message.mutable_stop()->set_lease(lease);
  message.mutable_stop()->set_reason(why);
  output_->ToWorker(it->second.stream, message);
}

absl::Status ManagerState::Cancel(const CancelRequest& request) {
  for (const auto& [id, lease] : leases_) {
    if (lease.epoch != request.lease_epoch()) continue;
    ManagerToProxy message;
    *message.mutable_cancel() = request.what();
    output_->ToProxy(lease.stream, message);
    return absl::OkStatus();
  }
  return absl::NotFoundError(absl::StrCat("no proxy holds lease ", request.lease_epoch(),
                                          " (the part of a session's id before the point); `parkway status` lists the "
                                          "sessions there are"));
}

void ManagerState::ForwardRestart(uint64_t id, const RestartEngine& restart) {
  for (Slice* slice : leases_.at(id).slices) {
    for (Host& host : slice->hosts) {
      if (!host.engine.up() || host.engine.endpoint().incarnation() != restart.incarnation()) continue;
      auto it = workers_.find(host.worker);
      if (it == workers_.end() || it->second.stream == 0) return;
      ManagerToWorker message;
      *message.mutable_restart() = restart;
      message.mutable_restart()->set_lease(id);
      output_->ToWorker(it->second.stream, message);
      return;
    }
  }
}

}  // namespace parkway::manager
