#include "runtime/engines.h"

#include <algorithm>
#include <utility>

#include "absl/container/btree_set.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/limits.h"
#include "base/status_wire.h"

namespace parkway::runtime {
namespace {

bool IsCrash(const absl::Status& cause) {
  for (absl::string_view signal : {"signal 4", "signal 6", "signal 7", "signal 8", "signal 11"}) {
    size_t at = cause.message().find(signal);
    if (at == absl::string_view::npos) continue;
    size_t end = at + signal.size();
    if (end == cause.message().size() || !absl::ascii_isdigit(cause.message()[end])) return true;
  }
  return false;
}

bool Erase(HostList& hosts, int host) {
  auto it = std::find(hosts.begin(), hosts.end(), host);
  if (it == hosts.end()) return false;
  hosts.erase(it);
  return true;
}

}  // namespace

absl::Status Cancelled(const std::string& what, const std::string& by) {
  return absl::CancelledError(absl::StrCat(what, " was cancelled: ", by));
}

Engines::Engines(CoreOptions& options, Hooks hooks)
    : options_(options), topology_(options.topology), hooks_(std::move(hooks)), hosts_(topology_.hosts().size()) {}

Engines::~Engines() {
  *alive_ = false;
  // What is still held tells its owner as it goes, so it goes while the tables stand.
  reads_.clear();
  in_flight_.clear();
}

// ---- Hosts

void Engines::Up(int host, const EngineHello& hello, std::unique_ptr<EngineLink> link) {
  HostEntry& entry = hosts_[host];
  if (entry.state == HostState::kUp) {
    Down(host, entry.incarnation, absl::UnavailableError("its engine was replaced"), true);
  }
  if (entry.timer != 0) options_.executor->Cancel(entry.timer);
  entry.timer = 0;
  const absl::Status loss = LossOf(host);
  entry.state = HostState::kUp;
  entry.incarnation = hello.incarnation();
  entry.hello = hello;
  limited_ = std::any_of(hosts_.begin(), hosts_.end(), [](const HostEntry& h) { return h.hello.memory_bytes() > 0; });
  entry.hello.clear_kept();
  entry.link = std::move(link);
  entry.paused = false;
  entry.cause = absl::OkStatus();
  JudgeKept(host, std::vector<ShardRef>(hello.kept().begin(), hello.kept().end()), loss);
  hooks_.up(host);
  RunAgain(host);
  hooks_.changed();
}

void Engines::Down(int host, uint64_t incarnation, const absl::Status& cause, bool returns) {
  HostEntry& entry = hosts_[host];
  if (entry.state == HostState::kUp && entry.incarnation != incarnation) return;
  bool was_up = entry.state == HostState::kUp;
  if (!was_up && entry.state == HostState::kAwaited) return;
  entry.link.reset();
  entry.cause = cause;
  if (entry.timer != 0) options_.executor->Cancel(entry.timer);
  entry.timer = 0;
  entry.state = returns ? HostState::kRestarting : HostState::kLost;
  if (returns) {
    entry.timer = options_.executor->After(limits::kHostReturnWait, [this, host, alive = alive_] {
      if (!*alive || hosts_[host].state != HostState::kRestarting) return;
      hosts_[host].timer = 0;
      hosts_[host].state = HostState::kLost;
      LoseHost(host);
      hooks_.changed();
    });
  }
  if (was_up) FailHost(host, cause, returns);
  if (!returns) LoseHost(host);
  hooks_.changed();
}

// What was kept to be put back on it never will be.
void Engines::LoseHost(int host) {
  hosts_[host].paused = false;
  hooks_.gone(host);
  const absl::Status loss = LossOf(host);
  for (const auto& [seq, entry] : in_flight_) {
    if (entry.hosts == HostList{host}) kept_.erase(seq);
  }
  for (const auto& [read, pending] : reads_) {
    if (pending.host == host) kept_reads_.erase(read);
  }
  EndAllOn(host, loss);
  for (auto& [id, buffers] : buffers_) {
    for (int device : topology_.hosts()[host].devices) {
      if (!buffers->devices()->Contains(device) || !buffers->Charged(device)) continue;
      buffers->Fail(device, loss);
      Discharge(*buffers, device);
    }
  }
}

absl::Status Engines::LossOf(int host) const {
  return absl::DataLossError(absl::StrCat(topology_.DescribeHost(host), " was lost: ", hosts_[host].cause.message(),
                                          ". What lay or ran there is gone"));
}

HostList Engines::HostsOf(absl::Span<const int32_t> devices) const {
  HostList hosts;
  for (int32_t device : devices) {
    int host = topology_.device(device).host;
    if (hosts.empty() || hosts.back() != host) hosts.push_back(host);
  }
  std::sort(hosts.begin(), hosts.end());
  hosts.erase(std::unique(hosts.begin(), hosts.end()), hosts.end());
  return hosts;
}

void Engines::BlameForCrash(int host, const absl::Status& cause) {
  // Launches reach an engine in order and XLA runs them in order, so the oldest one is the first to be suspected.
  for (auto& [seq, entry] : in_flight_) {
    if (!entry.launch || std::find(entry.hosts.begin(), entry.hosts.end(), host) == entry.hosts.end()) continue;
    if (!crashes_.contains(entry.fingerprint)) {
      crashed_.push_back(entry.fingerprint);
      if (crashed_.size() > limits::kRememberedCrashes) {
        crashes_.erase(crashed_.front());
        crashed_.pop_front();
      }
    }
    int times = ++crashes_[entry.fingerprint];
    entry.error = absl::FailedPreconditionError(
        absl::StrCat(entry.what, " crashed the engine of ", topology_.DescribeHost(host), " (", cause.message(), ")",
                     times >= limits::kCrashesUntilRefused ? "; it did so before and is refused from now on" : ""));
    for (const BuffersRef& output : entry.outputs) output->FailAll(entry.error);
    return;
  }
}

// Their own cause, before the host's loss becomes everybody else's.
void Engines::EndCancelled(int host) {
  for (auto& [seq, entry] : in_flight_) {
    if (entry.cancelled.ok() || !entry.error.ok()) continue;
    if (std::find(entry.hosts.begin(), entry.hosts.end(), host) == entry.hosts.end()) continue;
    entry.error = entry.cancelled;
    for (const BuffersRef& output : entry.outputs) output->FailAll(entry.error);
  }
}

bool Engines::Outlives(const Buffers& buffers, int host) const {
  const ifrt::MemoryKind& kind = buffers.spec().sharding->memory_kind();
  const auto& kinds = hosts_[host].hello.arena_kinds();
  return kind.has_value() && buffers.on_engines && !buffers.donated && buffers.settled() &&
         std::find(kinds.begin(), kinds.end(), *kind) != kinds.end();
}

void Engines::JudgeKept(int host, absl::Span<const ShardRef> kept, const absl::Status& loss) {
  absl::btree_set<std::pair<uint64_t, int>> unclaimed;
  for (const ShardRef& shard : kept) unclaimed.emplace(shard.array(), shard.device());
  for (auto& [id, buffers] : buffers_) {
    const bool outlives = Outlives(*buffers, host);
    for (int device : topology_.hosts()[host].devices) {
      if (!buffers->devices()->Contains(device) || !buffers->ShardError(device).ok()) continue;
      if (!outlives && (buffers->donated || !hooks_.spared(*buffers, device))) continue;
      if (buffers->wholes == 0 && !buffers->refs_by_device.contains(device)) continue;
      if (unclaimed.erase({id, device}) > 0) continue;
      buffers->Fail(device, loss);
      Discharge(*buffers, device);
    }
  }
  for (const auto& [array, device] : unclaimed) {
    ShardRef* shard = deletes_[host].add_shards();
    shard->set_array(array);
    shard->set_device(device);
  }
  if (!unclaimed.empty()) FlushDeletes();
}

void Engines::FailHost(int host, const absl::Status& cause, bool returns) {
  if (IsCrash(cause)) BlameForCrash(host, cause);
  absl::Status loss = LossOf(host);
  if (hosts_[host].paused) {  // our own doing: nobody's slice was lost
    loss = absl::AbortedError(absl::StrCat("the engine of ", topology_.DescribeHost(host),
                                           " was started again: ", cause.message(), ". Run the program once more"));
  }
  absl::flat_hash_set<uint64_t> made_again;
  if (hosts_[host].paused) {
    EndCancelled(host);
    made_again = KeepForNextEngine(host);
  }
  for (auto& [id, buffers] : buffers_) {
    if (!buffers->on_engines || made_again.contains(id) || (returns && Outlives(*buffers, host))) continue;
    for (int device : topology_.hosts()[host].devices) {
      if (!buffers->devices()->Contains(device) || hooks_.spared(*buffers, device)) continue;
      buffers->Fail(device, loss);
      Discharge(*buffers, device);
    }
  }
  std::vector<std::pair<uint64_t, int>> released;  // waited for this cause
  for (auto& [seq, entry] : in_flight_) {
    bool source = std::find(entry.sources.begin(), entry.sources.end(), host) != entry.sources.end();
    if (source && entry.error.ok()) entry.error = loss;
    if (!source) continue;
    for (int other : entry.complained) released.emplace_back(seq, other);
  }
  for (auto [seq, other] : released) End(seq, other, loss, nullptr);
  EndAllOn(host, loss);
  deletes_.erase(host);
  hooks_.lost(host, loss);
  hooks_.ends_known();
}

void Engines::EndAllOn(int host, const absl::Status& loss) {
  std::vector<uint64_t> ended;
  for (auto& [seq, entry] : in_flight_) {
    const bool here = std::find(entry.hosts.begin(), entry.hosts.end(), host) != entry.hosts.end();
    if (here && !kept_.contains(seq)) ended.push_back(seq);
  }
  for (uint64_t seq : ended) End(seq, host, loss, nullptr);
  std::vector<ReadDone> failed;
  for (auto it = reads_.begin(); it != reads_.end();) {
    auto here = it++;
    if (here->second.host != host || kept_reads_.contains(here->first)) continue;
    failed.push_back(std::move(here->second.done));
    reads_.erase(here);
  }
  for (ReadDone& done : failed) done(loss);
}

// ---- Again on the next engine

bool Engines::CanRunAgain(const InFlight& entry, int host, const absl::flat_hash_set<uint64_t>& made_again) const {
  if (entry.again == nullptr || !entry.error.ok() || entry.hosts != HostList{host}) return false;
  for (const std::weak_ptr<Buffers>& weak : entry.inputs) {
    const BuffersRef input = weak.lock();
    if (input == nullptr) return false;
    for (int device : topology_.hosts()[host].devices) {
      if (!input->devices()->Contains(device) || made_again.contains(input->id())) continue;
      if (!hooks_.spared(*input, device) && !Outlives(*input, host)) return false;
    }
  }
  return true;
}

absl::flat_hash_set<uint64_t> Engines::KeepForNextEngine(int host) {
  absl::flat_hash_set<uint64_t> made_again;
  for (const auto& [seq, entry] : in_flight_) {  // in their order: one may work on what another makes
    if (!CanRunAgain(entry, host, made_again)) continue;
    kept_.insert(seq);
    for (const BuffersRef& output : entry.outputs) made_again.insert(output->id());
  }
  for (const auto& [read, pending] : reads_) {
    if (pending.host != host || pending.again == nullptr) continue;
    const std::shared_ptr<const Buffers> buffers = pending.buffers.lock();
    if (buffers == nullptr) continue;
    if (made_again.contains(buffers->id()) || hooks_.spared(*buffers, pending.device) || Outlives(*buffers, host))
      kept_reads_.insert(read);
  }
  return made_again;
}

void Engines::RunAgain(int host) {
  std::vector<uint64_t> seqs;
  for (const auto& [seq, entry] : in_flight_) {
    if (kept_.contains(seq) && entry.hosts == HostList{host}) seqs.push_back(seq);
  }
  HostEntry& to = hosts_[host];
  for (uint64_t seq : seqs) {
    kept_.erase(seq);
    const InFlight& entry = in_flight_.at(seq);
    if (entry.again == nullptr || !entry.reload()) {
      End(seq, host, absl::AbortedError(absl::StrCat(entry.what, " was dropped while it ran")), nullptr);
      continue;
    }
    to.link->Send(entry.again);
    for (const BuffersRef& output : entry.outputs) {
      if (output->donated) deletes_[host].add_arrays(output->id());
      if (output->donated) continue;
      for (int device : output->discharged) {
        ShardRef* shard = deletes_[host].add_shards();
        shard->set_array(output->id());
        shard->set_device(device);
      }
    }
  }
  std::vector<uint64_t> reads;
  for (const auto& [read, pending] : reads_) {
    if (pending.host == host && kept_reads_.erase(read) > 0) reads.push_back(read);
  }
  std::sort(reads.begin(), reads.end());
  for (uint64_t read : reads) to.link->Send(reads_.at(read).again);
  ScheduleFlush(0);
}

// ---- Buffers

BuffersRef Engines::NewBuffers(const HolderRef& holder, const ArraySpec& spec, int64_t shard_bytes, MadeBy made_by) {
  auto buffers = std::make_shared<Buffers>(this, next_id_++, holder, spec, shard_bytes, std::move(made_by));
  buffers_[buffers->id()] = buffers.get();
  return buffers;
}

void Engines::Discharge(Buffers& buffers, int device) {
  if (!buffers.Charged(device)) return;
  buffers.discharged.insert(device);
  AddBytes(buffers, device, -buffers.shard_bytes());
}

void Engines::DischargeAll(Buffers& buffers) {
  if (!buffers.charged) return;
  for (int device : buffers.devices()->ids()) {
    if (buffers.Charged(device)) AddBytes(buffers, device, -buffers.shard_bytes());
  }
  buffers.charged = false;
}

void Engines::AddBytes(Buffers& buffers, int device, int64_t bytes) {
  hosts_[topology_.device(device).host].bytes += bytes;
  buffers.holder().bytes += bytes;
}

void Engines::Donate(Buffers& buffers) {
  buffers.donated = true;
  DischargeAll(buffers);
}

void Engines::OnFreed(Buffers& buffers, absl::Span<const int> devices) {
  if (!buffers.on_engines || buffers.donated) return;
  if (devices.empty()) {
    Donate(buffers);  // nothing of it is left to free
    for (int host : HostsOf(buffers.devices()->ids())) {
      if (hosts_[host].state == HostState::kUp) deletes_[host].add_arrays(buffers.id());
    }
  } else {
    for (int device : devices) {
      Discharge(buffers, device);
      int host = topology_.device(device).host;
      if (hosts_[host].state != HostState::kUp) continue;
      ShardRef* shard = deletes_[host].add_shards();
      shard->set_array(buffers.id());
      shard->set_device(device);
    }
  }
  const int64_t shards = static_cast<int64_t>(devices.empty() ? buffers.devices()->size() : devices.size());
  ScheduleFlush(shards * buffers.shard_bytes());
}

void Engines::OnDestroyed(Buffers& buffers) {
  buffers_.erase(buffers.id());
  DischargeAll(buffers);
}

void Engines::ForEachBuffers(const std::function<void(Buffers&)>& visit) const {
  std::vector<Buffers*> all;
  all.reserve(buffers_.size());
  for (const auto& [id, buffers] : buffers_) all.push_back(buffers);
  std::sort(all.begin(), all.end(), [](Buffers* a, Buffers* b) { return a->id() < b->id(); });
  for (Buffers* buffers : all) visit(*buffers);
}

void Engines::ScheduleFlush(int64_t bytes) {
  delete_bytes_ += bytes;
  ++delete_count_;
  if (flush_scheduled_) return;
  auto flush = [this, alive = alive_] {
    if (*alive) FlushDeletes();
  };
  if (delete_bytes_ >= limits::kDeleteAtOnceBytes || delete_count_ >= limits::kDeleteAtOnce) {
    flush_scheduled_ = true;
    options_.executor->Post(flush);
  } else if (!std::exchange(flush_timer_, true)) {
    options_.executor->After(limits::kDeleteDelay, flush);
  }
}

void Engines::FlushDeletes() {
  flush_scheduled_ = flush_timer_ = false;
  delete_bytes_ = delete_count_ = 0;
  absl::flat_hash_map<int, Delete> deletes = std::move(deletes_);
  deletes_.clear();
  for (auto& [host, what] : deletes) {
    Op op;
    *op.mutable_delete_() = std::move(what);
    Tell({host}, std::move(op));
  }
}

// ---- Operations

void Engines::MarkMade(const InFlight& entry) {
  for (const BuffersRef& output : entry.outputs) {
    output->on_engines = true;
    output->charged = true;
    for (int device : output->devices()->ids()) AddBytes(*output, device, output->shard_bytes());
  }
}

uint64_t Engines::Issue(Op op, InFlight entry) {
  uint64_t seq = next_seq_++;
  op.set_seq(seq);
  op.set_session(entry.session);
  if (entry.launch) entry.issued = options_.executor->Now();
  op.set_context(entry.context);
  MarkMade(entry);
  auto frame = std::make_shared<const std::string>(op.SerializeAsString());
  HostList hosts = entry.hosts;
  std::vector<BuffersRef> outputs = entry.outputs;
  if (entry.reload) entry.again = frame;
  in_flight_.emplace(seq, std::move(entry));
  for (int host : hosts) hosts_[host].link->Send(frame);
  for (const BuffersRef& output : outputs) output->FreeUnreferenced();
  return seq;
}

uint64_t Engines::IssueEach(std::vector<Op> ops, InFlight entry) {
  uint64_t seq = next_seq_++;
  MarkMade(entry);
  HostList hosts = entry.hosts;
  std::vector<BuffersRef> outputs = entry.outputs;
  uint64_t session = entry.session;
  in_flight_.emplace(seq, std::move(entry));
  for (size_t i = 0; i < hosts.size(); ++i) {
    ops[i].set_seq(seq);
    ops[i].set_session(session);
    hosts_[hosts[i]].link->Send(std::make_shared<const std::string>(ops[i].SerializeAsString()));
  }
  // Their client may have deleted them while the operation waited.
  for (const BuffersRef& output : outputs) output->FreeUnreferenced();
  return seq;
}

void Engines::Tell(absl::Span<const int> hosts, Op op) {
  op.set_seq(next_seq_++);
  auto frame = std::make_shared<const std::string>(op.SerializeAsString());
  for (int host : hosts) {
    if (hosts_[host].state == HostState::kUp) hosts_[host].link->Send(frame);
  }
}

void Engines::TellControl(int host, Op op) {
  if (hosts_[host].state != HostState::kUp) return;
  op.set_seq(next_seq_++);
  hosts_[host].link->SendControl(std::make_shared<const std::string>(op.SerializeAsString()));
}

void Engines::Read(uint64_t session, const Buffers& buffers, int device, ReadDone done) {
  StartRead(session, buffers, device, /*keep=*/false, std::move(done));
}

void Engines::Keep(const Buffers& buffers, int device, absl::AnyInvocable<void(const absl::Status&)> done) {
  StartRead(buffers.session(), buffers, device, /*keep=*/true,
            [done = std::move(done)](const absl::StatusOr<Bytes>& answer) mutable { done(answer.status()); });
}

void Engines::StartRead(uint64_t session, const Buffers& buffers, int device, bool keep, ReadDone done) {
  int host = topology_.device(device).host;
  if (hosts_[host].state != HostState::kUp) {
    done(LossOf(host));
    return;
  }
  uint64_t read = next_id_++;
  Op op;
  op.set_seq(next_seq_++);
  op.set_session(session);
  op.mutable_read()->set_read(read);
  op.mutable_read()->mutable_shard()->set_array(buffers.id());
  op.mutable_read()->mutable_shard()->set_device(device);
  op.mutable_read()->set_keep(keep);
  auto frame = std::make_shared<const std::string>(op.SerializeAsString());
  reads_.emplace(read, PendingRead{keep ? 0 : session, host, std::move(done), buffers.weak_from_this(), device,
                                   keep ? nullptr : frame});
  keep ? hosts_[host].link->SendControl(frame) : hosts_[host].link->Send(frame);
}

void Engines::OnRead(int host, const ReadResult& result) {
  auto it = reads_.find(result.read());
  if (it == reads_.end() || it->second.host != host) return;
  ReadDone done = std::move(it->second.done);
  reads_.erase(it);
  absl::Status status = FromProto(result.status());
  if (!status.ok()) {
    done(status);
  } else if (!result.has_transfer()) {
    done(Bytes::OfString(result.inline_bytes()));
  } else {
    options_.transfers->Fetch(result.transfer(), [this, host, id = result.transfer().id(), alive = alive_,
                                                  done = std::move(done)](absl::StatusOr<Bytes> bytes) mutable {
      options_.executor->Post([this, host, id, alive, done = std::move(done), bytes = std::move(bytes)]() mutable {
        if (*alive) {
          Op op;
          op.mutable_release()->add_transfers(id);
          Tell({host}, std::move(op));
        }
        done(std::move(bytes));
      });
    });
  }
}

void Engines::OnEvents(int host, uint64_t incarnation, const Events& events) {
  if (hosts_[host].state != HostState::kUp || hosts_[host].incarnation != incarnation) return;
  for (const Ran& ran : events.ran()) {
    auto it = in_flight_.find(ran.seq());
    if (it != in_flight_.end()) it->second.ran = absl::Nanoseconds(ran.nanoseconds());
  }
  for (uint64_t seq : events.done()) End(seq, host, absl::OkStatus(), nullptr);
  for (const Failure& failure : events.failures()) {
    absl::Status status = FromProto(failure.status());
    auto it = in_flight_.find(failure.seq());
    bool of_peer =
        failure.peer() || (it != in_flight_.end() && !it->second.sources.empty() && absl::IsUnavailable(status));
    if (of_peer) {
      HoldForCause(failure.seq(), host, status, failure);
    } else {
      End(failure.seq(), host, status, &failure);
    }
  }
  for (const ReadResult& result : events.reads()) OnRead(host, result);
  for (const ContextState& state : events.contexts()) hooks_.context_state(host, state);
  for (const KeyValue& key : events.key_values()) hooks_.key_value(host, key);
  hooks_.ends_known();
}

void Engines::HoldForCause(uint64_t seq, int host, absl::Status complaint, const Failure& failure) {
  auto it = in_flight_.find(seq);
  if (it == in_flight_.end()) return;
  if (!it->second.error.ok()) {  // the cause is known already
    End(seq, host, it->second.error, nullptr);
    return;
  }
  it->second.complained.push_back(host);
  options_.executor->After(limits::kCauseWait,
                           [this, seq, host, complaint = std::move(complaint), failure, alive = alive_] {
                             if (!*alive) return;
                             End(seq, host, complaint, &failure);
                             hooks_.ends_known();
                           });
}

void Engines::FailOutputs(const InFlight& entry, int host, const absl::Status& status, const Failure* failure) {
  for (const BuffersRef& output : entry.outputs) {
    for (int device : topology_.hosts()[host].devices) {
      if (!output->devices()->Contains(device)) continue;
      const ShardError* own = nullptr;
      for (int i = 0; failure != nullptr && i < failure->shards_size(); ++i) {
        if (failure->shards(i).device() == device) own = &failure->shards(i);
      }
      if (own != nullptr) {
        output->Fail(device, FromProto(own->status()));
      } else if (failure == nullptr || failure->shards().empty()) {
        output->Fail(device, status);
      }
    }
  }
}

void Engines::End(uint64_t seq, int host, const absl::Status& status, const Failure* failure) {
  auto it = in_flight_.find(seq);
  if (it == in_flight_.end() || !Erase(it->second.hosts, host)) return;
  InFlight& entry = it->second;
  auto launch_ended = [&](int where) {
    if (entry.running != nullptr) hooks_.launch_ended(entry.running, where, entry.ran);
  };
  launch_ended(host);
  if (!status.ok()) {
    FailOutputs(entry, host, status, failure);
    if (entry.error.ok()) entry.error = status;
    // The cause is known now: those who complained about a peer have nothing more to wait for.
    for (int other : entry.complained) {
      if (!Erase(entry.hosts, other)) continue;
      launch_ended(other);
      FailOutputs(entry, other, entry.error, nullptr);
    }
    entry.complained.clear();
  }
  if (!entry.hosts.empty()) return;
  InFlight finished = std::move(it->second);
  in_flight_.erase(it);
  Finish(std::move(finished));
}

void Engines::Finish(InFlight entry) {
  for (const BuffersRef& output : entry.outputs) {
    if (entry.launch && !entry.error.ok()) output->FailAll(entry.error);
    output->Settle();
  }
  hooks_.ended(entry);
  if (entry.done) entry.done(entry.error);
}

std::vector<const InFlight*> Engines::InFlightOn(int host) const {
  std::vector<const InFlight*> found;
  for (const auto& [seq, entry] : in_flight_) {
    if (std::find(entry.hosts.begin(), entry.hosts.end(), host) != entry.hosts.end()) found.push_back(&entry);
  }
  return found;
}

Engines::Launches Engines::LaunchesOf(uint64_t session) const {
  Launches launches;
  for (const auto& [seq, entry] : in_flight_) {
    if (entry.session != session || !entry.launch) continue;
    if (launches.count++ == 0) launches.oldest = &entry;
  }
  return launches;
}

void Engines::Cancel(uint64_t session, const std::string& by) {
  for (auto& [seq, entry] : in_flight_) {
    if (entry.session == session) entry.cancelled = Cancelled(entry.what, by);
  }
}

HostList Engines::HostsWithCancelled(uint64_t session) const {
  HostList hosts;
  for (const auto& [seq, entry] : in_flight_) {
    if (entry.session != session || !entry.launch || entry.cancelled.ok()) continue;
    for (int host : entry.hosts) {
      if (std::find(hosts.begin(), hosts.end(), host) == hosts.end()) hosts.push_back(host);
    }
  }
  return hosts;
}

void Engines::DropCallbacks(uint64_t session) {
  for (auto& [seq, entry] : in_flight_) {
    if (entry.session != session) continue;
    entry.done = nullptr;
    entry.again = nullptr;
  }
  absl::erase_if(reads_, [session](const auto& read) { return read.second.session == session; });
}

int Engines::crashes(const std::string& fingerprint) const {
  auto it = crashes_.find(fingerprint);
  return it == crashes_.end() ? 0 : it->second;
}

}  // namespace parkway::runtime
