// ManagerState's half about workers: who may join, which seat they get, what happens to the engines that they bring.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/limits.h"
#include "base/status.h"
#include "base/status_wire.h"
#include "glog/logging.h"
#include "manager/manager_state.h"
#include "manager/slice_type.h"

namespace parkway::manager {
namespace {

// Google's words: their users look for them in a worker's log.
absl::Status Mismatch(const WorkerHello& hello, absl::string_view why) {
  return absl::InvalidArgumentError(
      absl::StrCat("The newly added instance does not match with the expected instances: worker ", hello.name(),
                   " has ", hello.devices(), " devices of platform ", hello.platform(), ", ", why));
}

}  // namespace

absl::Status ManagerState::CheckHello(const WorkerHello& hello) const {
  if (hello.name().empty() || hello.name().size() > limits::kMaxNameBytes ||
      hello.slice().size() > limits::kMaxNameBytes || hello.last_seat().slice().size() > limits::kMaxNameBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("a worker's hello has no name, or a name longer than ", limits::kMaxNameBytes, " bytes"));
  }
  if (hello.platform().empty() || hello.devices() < 0 || hello.devices() > limits::kMaxDevicesPerHost) {
    return absl::InvalidArgumentError(absl::StrCat("worker ", hello.name(), " has ", hello.devices(),
                                                   " devices of platform '", hello.platform(), "': up to ",
                                                   limits::kMaxDevicesPerHost, " of a named platform are wanted"));
  }
  auto it = workers_.find(hello.name());
  if (it == workers_.end() || it->second.stream == 0) return absl::OkStatus();
  const WorkerHello& first = it->second.hello;
  if (first.incarnation() == hello.incarnation()) return absl::OkStatus();  // the same process on a new connection
  return absl::FailedPreconditionError(absl::StrCat("a worker named ", hello.name(), " has joined already (process ",
                                                    first.pid(), " on ", first.address(),
                                                    ") and is alive; stop it, or give this one (process ", hello.pid(),
                                                    " on ", hello.address(), ") another name or port"));
}

absl::StatusOr<SliceType> ManagerState::TypeOfWorker(const WorkerHello& hello) const {
  const SliceType& expected = options_.expected_type;
  if (expected.platform().empty()) {
    if (hello.devices() == 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("worker ", hello.name(),
                       " does not say how many devices it has (--devices), and the manager "
                       "was started without --instance_type"));
    }
    SliceType type;
    type.set_platform(hello.platform());
    type.set_hosts(1);
    type.set_devices_per_host(hello.devices());
    return type;
  }
  const bool any_number = hello.devices() == 0;
  if (hello.platform() != expected.platform() || !(any_number || hello.devices() == expected.devices_per_host())) {
    return Mismatch(hello, absl::StrCat("but the manager's --instance_type is ", SliceTypeName(expected), " (",
                                        expected.devices_per_host(), " devices on each host)"));
  }
  return expected;
}

void ManagerState::Join(StreamId stream, const WorkerHello& hello) {
  absl::Status checked = CheckHello(hello);
  absl::StatusOr<SliceType> type = checked.ok() ? TypeOfWorker(hello) : checked;
  absl::StatusOr<SeatRef> seat = type.ok() ? FindSeat(hello, *type) : type.status();
  if (!seat.ok()) {
    RefuseWorker(stream, seat.status());
    return;
  }
  Worker& worker = workers_[hello.name()];
  if (worker.stream != 0) EndStream(worker.stream, absl::AbortedError("the worker has connected anew"));
  worker.hello = hello;
  worker.hello.clear_engines();
  worker.hello.set_devices(type->devices_per_host());
  worker.stream = stream;
  worker.lost = absl::OkStatus();
  worker.slice = seat->slice->name;
  worker.host = seat->host;
  streams_.at(stream).worker = hello.name();
  std::string& occupant = seat->slice->hosts[seat->host].worker;
  if (occupant != hello.name()) {
    workers_.erase(occupant);  // lost, and now replaced
    occupant = hello.name();
  }
  if (seat->slice->lease != 0) leases_.at(seat->slice->lease).dirty = true;
  LOG(INFO) << Describe(worker) << " has joined: process " << hello.pid() << " on " << hello.address() << ", "
            << worker.hello.devices() << " devices of platform " << hello.platform();
  ManagerToWorker welcome;
  welcome.mutable_seat()->set_slice(worker.slice);
  welcome.mutable_seat()->set_host(worker.host);
  output_->ToWorker(stream, welcome);
  Reconcile(worker, hello);
}

// A worker that gave its seat up.
void ManagerState::Forget(const std::string& name) {
  auto node = workers_.extract(name);
  if (!node.empty() && node.mapped().stream != 0) {
    EndStream(node.mapped().stream, absl::AbortedError("the worker has connected anew"));
  }
}

// ---- Seats -------------------------------------------------------------------------------------------------------

absl::StatusOr<ManagerState::SeatRef> ManagerState::FindSeat(const WorkerHello& hello, const SliceType& type) {
  for (auto& slice : slices_) {
    for (size_t i = 0; i < slice->hosts.size(); ++i) {
      if (slice->hosts[i].worker != hello.name()) continue;
      const bool moved = !hello.slice().empty() && hello.slice() != slice->name;
      if (!moved && SameSliceType(slice->type, type)) return SeatRef{slice.get(), static_cast<int>(i)};
      if (slice->lease != 0) {
        return absl::FailedPreconditionError(absl::StrCat(
            "worker ", hello.name(), " was host ", i, " of ", slice->name, ", which is leased, and comes back ",
            moved ? absl::StrCat("as a host of ", hello.slice()) : absl::StrCat("with ", hello.devices(), " devices"),
            "; start it as it was, or under another name"));
      }
      slice->hosts[i] = Host();
      Forget(hello.name());
    }
  }
  if (!hello.slice().empty()) return SeatInSlice(hello, type, hello.slice(), hello.has_host() ? hello.host() : -1);
  if (!hello.last_seat().slice().empty()) {
    auto seat = SeatInSlice(hello, type, hello.last_seat().slice(), hello.last_seat().host());
    if (seat.ok()) return seat;
  }
  return SeatByArrival(type);
}

// The seat `wanted` (-1: any) of the named slice, which is made when it is new.
absl::StatusOr<ManagerState::SeatRef> ManagerState::SeatInSlice(const WorkerHello& hello, const SliceType& type,
                                                                const std::string& name, int wanted) {
  if (wanted < -1 || wanted >= type.hosts()) {
    return absl::InvalidArgumentError(absl::StrCat("worker ", hello.name(), " says that it is host ", wanted, " of ",
                                                   name, ", but a slice of ", SliceTypeName(type), " has ",
                                                   type.hosts(), " hosts, numbered from 0"));
  }
  Slice* slice = FindSlice(name);
  if (slice == nullptr) {
    PARKWAY_ASSIGN_OR_RETURN(slice, AddSlice(name, type));
  } else if (!SameSliceType(slice->type, type)) {
    return Mismatch(hello, absl::StrCat("but ", name, " is of type ", SliceTypeName(slice->type)));
  }
  // An empty seat rather than that of a lost worker, which may come back.
  for (bool empty : {true, false}) {
    for (int i = 0; i < type.hosts(); ++i) {
      const Host& host = slice->hosts[i];
      if ((wanted == -1 || wanted == i) && host.worker.empty() == empty && !Alive(host)) return SeatRef{slice, i};
    }
  }
  const std::string hosts = absl::StrJoin(slice->hosts, ", ", [](std::string* out, const Host& h) {
    absl::StrAppend(out, h.worker.empty() ? "-" : h.worker);
  });
  return absl::FailedPreconditionError(absl::StrCat(
      "worker ", hello.name(), " wants to be ", wanted == -1 ? std::string("a host") : absl::StrCat("host ", wanted),
      " of ", name, ", whose hosts are all there: ", hosts, "; stop one of them, or give this one another slice"));
}

absl::StatusOr<ManagerState::SeatRef> ManagerState::SeatByArrival(const SliceType& type) {
  auto find = [&](auto&& fits) -> SeatRef {
    for (auto& slice : slices_) {
      if (!SameSliceType(slice->type, type)) continue;
      for (size_t i = 0; i < slice->hosts.size(); ++i) {
        if (fits(slice->hosts[i])) return {slice.get(), static_cast<int>(i)};
      }
    }
    return {};
  };
  if (SeatRef seat = find([](const Host& h) { return h.worker.empty(); }); seat.slice != nullptr) return seat;
  int number = 0;
  while (FindSlice(absl::StrCat("slice-", number)) != nullptr) ++number;
  absl::StatusOr<Slice*> added = AddSlice(absl::StrCat("slice-", number), type);
  if (added.ok()) return SeatRef{*added, 0};
  if (SeatRef seat = find([this](const Host& h) { return !Alive(h); }); seat.slice != nullptr) return seat;
  return added.status();
}

int ManagerState::SliceLimit() const {
  return options_.expected_type.platform().empty() ? limits::kMaxManagerStreams : options_.expected_slices;
}

absl::StatusOr<ManagerState::Slice*> ManagerState::AddSlice(const std::string& name, const SliceType& type) {
  if (static_cast<int>(slices_.size()) >= SliceLimit()) {
    return absl::FailedPreconditionError(
        absl::StrCat("The newly added instance does not match with the expected instances: all ", slices_.size(),
                     " slices (--instance_count) of ", SliceTypeName(type), " have their ", type.hosts(),
                     " hosts, there is no place for another worker"));
  }
  auto slice = std::make_unique<Slice>();
  slice->name = name;
  slice->type = type;
  slice->hosts.resize(type.hosts());
  auto after = std::find_if(slices_.begin(), slices_.end(), [&](const std::unique_ptr<Slice>& other) {
    return std::pair(name.size(), absl::string_view(name)) <
           std::pair(other->name.size(), absl::string_view(other->name));
  });
  return slices_.insert(after, std::move(slice))->get();
}

// ---- Engines that workers bring, and losses ----------------------------------------------------------------------

void ManagerState::Reconcile(Worker& worker, const WorkerHello& hello) {
  Slice& slice = *FindSlice(worker.slice);
  Host& host = HostOf(worker);
  bool has_engine = false;
  for (const EngineState& engine : hello.engines()) {
    // Given up already: it must not come up again as it was.
    const bool given_up =
        engine.up() && !host.engine.up() && engine.endpoint().incarnation() == host.engine.endpoint().incarnation();
    if ((slice.lease != 0 && engine.lease() == slice.lease) || (given_up && engine.lease() == slice.orphan)) {
      has_engine = true;
      if (given_up) {
        ManagerToWorker message;
        message.mutable_restart()->set_lease(engine.lease());
        message.mutable_restart()->set_incarnation(engine.endpoint().incarnation());
        message.mutable_restart()->set_reason("its worker was lost for a while");
        output_->ToWorker(worker.stream, message);
      } else {
        OnEngineState(worker, engine);
      }
    } else if (slice.lease == 0 && Resuming() && (slice.orphan == 0 || slice.orphan == engine.lease())) {
      slice.orphan = engine.lease();
      host.engine = engine;
    } else {
      StopEngine(host, engine.lease(), "its lease has ended");
    }
  }
  if (slice.lease != 0 && !has_engine) StartEngine(slice, host, leases_.at(slice.lease));
}

void ManagerState::OnEngineState(const Worker& worker, const EngineState& state) {
  Slice& slice = *FindSlice(worker.slice);
  Host& host = HostOf(worker);
  const uint64_t lease = slice.lease != 0 ? slice.lease : slice.orphan;
  if (lease == 0 || state.lease() != lease) return;  // of a lease that has ended
  if (state.up()) {
    host.engine = state;
    host.engine.clear_cause();
    LOG(INFO) << "The engine of " << Describe(worker) << " is up: process " << state.endpoint().pid() << " at "
              << state.endpoint().address();
  } else {
    host.engine.set_lease(lease);
    host.engine.set_up(false);
    if (!state.has_cause()) return;  // it is starting, and nothing is known to have gone wrong
    *host.engine.mutable_cause() = state.cause();
    LOG(WARNING) << "The engine of " << Describe(worker) << " is down: " << state.cause().message();
  }
  if (slice.lease != 0) leases_.at(slice.lease).dirty = true;
}

void ManagerState::Lose(Worker& worker, const std::string& why) {
  LOG(WARNING) << Describe(worker) << " is lost: " << why;
  worker.stream = 0;
  worker.lost = absl::UnavailableError(why);
  Slice& slice = *FindSlice(worker.slice);
  if (slice.lease == 0 && slice.orphan == 0) return;
  EngineState& engine = HostOf(worker).engine;
  engine.set_up(false);
  *engine.mutable_cause() = ToProto(absl::UnavailableError(absl::StrCat(Describe(worker), " is lost: ", why)));
  if (slice.lease != 0) leases_.at(slice.lease).dirty = true;
}

bool ManagerState::Alive(const Host& host) const {
  auto it = workers_.find(host.worker);
  return it != workers_.end() && it->second.stream != 0;
}

bool ManagerState::Ready(const Slice& slice) const {
  return std::all_of(slice.hosts.begin(), slice.hosts.end(), [this](const Host& h) { return Alive(h); });
}

ManagerState::Host& ManagerState::HostOf(const Worker& worker) { return FindSlice(worker.slice)->hosts[worker.host]; }

ManagerState::Slice* ManagerState::FindSlice(const std::string& name) {
  for (auto& slice : slices_) {
    if (slice->name == name) return slice.get();
  }
  return nullptr;
}

}  // namespace parkway::manager
