#include "engine/host.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_wire.h"
#include "engine/host_impl.h"

namespace parkway::engine {

// ---- Turn ----------------------------------------------------------------------------------------------------------

Turn::~Turn() {
  lock_.unlock();
  if (events_.has_value()) {
    host_.events_->Emit([&](Events& events) {
      events.MergeFrom(*events_);
      events.mutable_done()->Add(lazy_done_.begin(), lazy_done_.end());
    });
  } else if (!lazy_done_.empty()) {
    host_.events_->EmitLazily(
        [&](Events& events) { events.mutable_done()->Add(lazy_done_.begin(), lazy_done_.end()); });
  }
  for (Task& task : tasks_) task();
}

void Turn::Fail(uint64_t seq, const absl::Status& status, bool peer) {
  Failure& failure = *events().add_failures();
  failure.set_seq(seq);
  *failure.mutable_status() = ToProto(status);
  failure.set_peer(peer);
}

// ---- EngineHost ----------------------------------------------------------------------------------------------------

EngineHost::EngineHost(HostOptions options, Engine& engine, fabric::Bulk& bulk, HostThreads threads)
    : impl_(std::make_shared<HostImpl>(std::move(options), engine, bulk, std::move(threads))) {}

EngineHost::~EngineHost() { impl_->Stop(); }

EngineHello EngineHost::Hello() const { return impl_->Hello(); }

absl::Status EngineHost::Start(const ProxyHello& proxy, std::function<void(fabric::Frame)> send) {
  return impl_->Start(proxy, std::move(send));
}

void EngineHost::Stop() { impl_->Stop(); }

HostStats EngineHost::Stats() const { return impl_->Stats(); }

absl::Status EngineHost::OnMessage(std::string_view message) {
  Op op;
  if (!op.ParseFromArray(message.data(), static_cast<int>(message.size()))) {
    return absl::InvalidArgumentError(absl::StrCat("a message of ", message.size(), " bytes is no operation"));
  }
  impl_->Handle(op);
  return absl::OkStatus();
}

absl::Status EngineHost::OnControl(std::string_view message) {
  Op op;
  if (!op.ParseFromArray(message.data(), static_cast<int>(message.size()))) {
    return absl::InvalidArgumentError(absl::StrCat("a message of ", message.size(), " bytes is no operation"));
  }
  impl_->HandleControl(op);
  return absl::OkStatus();
}

// ---- HostImpl ------------------------------------------------------------------------------------------------------

HostImpl::HostImpl(HostOptions options, Engine& engine, fabric::Bulk& bulk, HostThreads threads)
    : options_(std::move(options)),
      engine_(engine),
      bulk_(bulk),
      threads_(std::move(threads)),
      events_(std::make_shared<EventSender>(*threads_.clock)) {
  auto local = std::make_shared<ContextEntry>();
  local->state = ContextEntry::State::kOpen;
  contexts_.emplace(0, std::move(local));
}

EngineHello HostImpl::Hello() const {
  const Capabilities& capabilities = engine_.capabilities();
  EngineHello hello;
  hello.set_incarnation(options_.incarnation);
  hello.set_devices(capabilities.devices);
  hello.set_platform(capabilities.platform);
  hello.set_engine(capabilities.version);
  hello.set_machine(options_.machine);
  hello.set_bulk_endpoint(bulk_.endpoint());
  for (const std::string& kind : capabilities.memory_kinds) hello.add_memory_kinds(kind);
  hello.set_cpu_features(capabilities.cpu_features);
  hello.set_memory_bytes(options_.memory_bytes);
  hello.set_pid(getpid());
  for (const std::string& kind : ArenaKinds()) hello.add_arena_kinds(kind);
  return hello;
}

absl::Status HostImpl::Start(const ProxyHello& proxy, std::function<void(fabric::Frame)> send) {
  const int devices = engine_.capabilities().devices;
  if (proxy.devices_size() != devices) {
    return absl::FailedPreconditionError(
        absl::StrCat("the proxy expects ", proxy.devices_size(), " devices on this host, whose engine has ", devices));
  }
  absl::flat_hash_map<int, int> local_of;
  for (int i = 0; i < devices; ++i) {
    if (!local_of.emplace(proxy.devices(i), i).second) {
      return absl::FailedPreconditionError(absl::StrCat("the proxy names device ", proxy.devices(i), " twice"));
    }
  }
  {
    Turn turn(*this);
    if (started_) return absl::FailedPreconditionError("this engine already serves a proxy");
    started_ = true;
    proxy_ = proxy;
    local_of_ = std::move(local_of);
  }
  EngineHello hello = Hello();
  for (ShardRef& shard : TakeOver()) *hello.add_kept() = std::move(shard);
  {
    Turn turn(*this);
    *turn.events().mutable_hello() = std::move(hello);
  }
  events_->Start(std::move(send));
  return absl::OkStatus();
}

void HostImpl::Stop() {
  events_->Stop();
  std::vector<std::unique_ptr<Runner>> launchers;
  decltype(arrays_) arrays;
  decltype(loaded_) loaded;
  decltype(contexts_) contexts;
  decltype(programs_) programs;
  {
    Turn turn(*this);
    stopped_ = true;
    arrays.swap(arrays_);
    loaded.swap(loaded_);
    contexts.swap(contexts_);
    programs.swap(programs_);
    for (auto& [id, context] : contexts) {
      launchers.push_back(std::move(context->launcher));
      for (const ItemRef& item : context->unfinished) turn.Drop(item);
      context->unfinished.clear();
      context->queue.clear();
    }
    for (uint64_t transfer : exports_) turn.Then([this, transfer] { bulk_.Drop(transfer); });
    exports_.clear();
    // Nobody may keep bytes by waiting for them: a launch that never ends would.
    for (auto& [id, slot] : arrays) SetFailed(turn, *slot, absl::CancelledError("this engine's lease has ended"));
  }
  launchers.clear();  // waits for launches that are being made
}

HostStats HostImpl::Stats() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return {.arrays = arrays_.size(),
          .executables = loaded_.size(),
          .contexts = contexts_.size(),
          .operations = unfinished_,
          .launches_inline = launches_inline_,
          .launches_queued = launches_queued_};
}

void HostImpl::Handle(Op& op) {
  switch (op.kind_case()) {
    case Op::kPut:
      return HandlePut(op);
    case Op::kGather:
      return HandleGather(op);
    case Op::kDelete:
      return HandleDelete(op);
    case Op::kLoad:
      return HandleLoad(op);
    case Op::kUnload:
      return HandleUnload(op);
    case Op::kLaunch:
      return HandleLaunch(op);
    default:
      return HandleControl(op);
  }
}

void HostImpl::HandleControl(Op& op) {
  switch (op.kind_case()) {
    case Op::kExport:
      return HandleExport(op);
    case Op::kRead:
      return HandleRead(op);
    case Op::kRelease:
      return HandleRelease(op);
    case Op::kOpenContext:
      return HandleOpenContext(op);
    case Op::kCloseContext:
      return HandleCloseContext(op);
    case Op::kKeyValue:
      return HandleKeyValue(op);
    case Op::kAbort:
      return HandleAbort(op);
    default:
      Turn(*this).Fail(op.seq(), absl::InvalidArgumentError(
                                     absl::StrCat("operation ", op.seq(),
                                                  " is of a kind that this engine doesn't know, or that has "
                                                  "to come in the one order, on the link of the operations")));
  }
}

absl::StatusOr<int> HostImpl::LocalDevice(int lease_device) const {
  auto it = local_of_.find(lease_device);
  if (it == local_of_.end()) {
    return absl::InvalidArgumentError(
        absl::StrCat("device ", lease_device, " isn't one of host ", proxy_.host(), "'s, which executes this"));
  }
  return it->second;
}

absl::StatusOr<std::string> HostImpl::MemoryKind(const std::string& kind) const {
  const std::vector<std::string>& kinds = engine_.capabilities().memory_kinds;
  if (kind.empty()) return kinds.empty() ? std::string() : kinds.front();
  if (std::find(kinds.begin(), kinds.end(), kind) == kinds.end()) {
    return absl::InvalidArgumentError(absl::StrCat("memory kind '", kind, "' isn't one of this engine's"));
  }
  return kind;
}

absl::StatusOr<SlotRef> HostImpl::Find(Turn& /*turn*/, uint64_t array) {
  auto it = arrays_.find(array);
  if (it == arrays_.end()) {
    return absl::InvalidArgumentError(
        absl::StrCat("array ", array, " isn't on host ", proxy_.host(), ": it was deleted, donated or never made"));
  }
  return it->second;
}

absl::StatusOr<Piece> HostImpl::FindShard(Turn& turn, const ShardRef& ref) {
  absl::StatusOr<int> device = LocalDevice(ref.device());
  if (!device.ok()) return device.status();
  absl::StatusOr<SlotRef> slot = Find(turn, ref.array());
  if (!slot.ok()) return slot.status();
  const std::vector<int>& devices = (*slot)->devices;
  if (std::find(devices.begin(), devices.end(), *device) == devices.end()) {
    return absl::InvalidArgumentError(absl::StrCat("array ", ref.array(), " has no shard on device ", ref.device()));
  }
  return Piece{*std::move(slot), *device};
}

absl::StatusOr<SlotRef> HostImpl::Promise(Turn& /*turn*/, uint64_t array, std::vector<int> devices,
                                          std::string memory_kind) {
  if (array == 0) return absl::InvalidArgumentError("an operation names array 0 as its result, which is none");
  if (stopped_) return absl::CancelledError("this engine's lease has ended");
  auto [it, inserted] = arrays_.try_emplace(array);
  if (!inserted) {
    return absl::InvalidArgumentError(absl::StrCat("array ", array, " already exists on host ", proxy_.host()));
  }
  it->second = std::make_shared<Slot>();
  it->second->array = array;
  it->second->devices = std::move(devices);
  it->second->memory_kind = std::move(memory_kind);
  return it->second;
}

void HostImpl::SetLaunched(Turn& turn, Slot& slot, ArrayRef ref, std::vector<std::pair<int, absl::Status>> faults) {
  if (slot.state != Slot::State::kPromised) return turn.Drop(std::move(ref));  // its context was closed meanwhile
  slot.state = Slot::State::kLaunched;
  slot.ref = std::move(ref);
  slot.faults = std::move(faults);
  turn.Then(slot.on_launched);
}

void HostImpl::SetFailed(Turn& turn, Slot& slot, const absl::Status& error) {
  if (slot.state == Slot::State::kFailed) return;  // the first cause stays
  slot.state = Slot::State::kFailed;
  slot.error = error;
  slot.blocks.clear();
  turn.Drop(std::move(slot.ref));
  slot.ref = nullptr;
  turn.Then(slot.on_launched);
  Settle(turn, slot);
}

void HostImpl::Settle(Turn& turn, Slot& slot) {
  slot.settled = true;
  turn.Then(slot.on_settled);
}

void HostImpl::Unuse(Turn& turn, Slot& slot) {
  --slot.uses;
  turn.Then(slot.on_unused);
}

absl::StatusOr<ArrayRef> HostImpl::Shard(Turn& /*turn*/, const Slot& slot, int device) const {
  if (slot.state == Slot::State::kFailed) return slot.error;
  for (const auto& [faulty, status] : slot.faults) {
    if (faulty == device) return status;
  }
  return slot.ref;
}

void HostImpl::WhenLaunched(Turn& turn, Slot& slot, Task then) {
  if (slot.state == Slot::State::kPromised) {
    slot.on_launched.push_back(std::move(then));
  } else {
    turn.Then(std::move(then));
  }
}

void HostImpl::RemoveArray(Turn& turn, uint64_t array) {
  auto it = arrays_.find(array);
  if (it == arrays_.end()) return;
  turn.Drop(std::move(it->second));
  arrays_.erase(it);
}

// The array goes on without that shard. Whoever has bound the old slot keeps it.
void HostImpl::RemoveShard(Turn& turn, const ShardRef& ref) {
  const absl::StatusOr<Piece> piece = FindShard(turn, ref);
  if (!piece.ok()) return;
  const SlotRef old = piece->slot;
  std::vector<int> rest;
  for (int device : old->devices) {
    if (device != piece->device) rest.push_back(device);
  }
  RemoveArray(turn, ref.array());
  if (rest.empty()) return;
  absl::StatusOr<SlotRef> made = Promise(turn, ref.array(), rest, old->memory_kind);
  if (!made.ok()) return;
  const SlotRef slot = *std::move(made);
  slot->origin = old->origin;
  ++old->uses;
  WhenLaunched(turn, *old, [self = shared_from_this(), old, slot] {
    std::vector<ShardOf> shards;
    std::vector<std::pair<int, absl::Status>> faults;
    {
      Turn turn(*self);
      for (int device : slot->devices) {
        absl::StatusOr<ArrayRef> array = self->Shard(turn, *old, device);
        if (array.ok()) {
          shards.push_back({*std::move(array), device});
        } else {
          faults.emplace_back(device, array.status());
        }
      }
    }
    absl::StatusOr<ArrayRef> array = ArrayRef();
    if (!shards.empty()) array = self->engine_.Assemble(shards);
    if (array.ok() && *array == nullptr) array = faults.front().second;
    Turn turn(*self);
    self->Unuse(turn, *old);
    if (!array.ok()) return self->SetFailed(turn, *slot, array.status());
    self->SetLaunched(turn, *slot, *std::move(array), std::move(faults));
    auto settle = [self, old, slot] {
      Turn turn(*self);
      if (old->state == Slot::State::kFailed) self->SetFailed(turn, *slot, old->error);
      for (const auto& [device, block] : old->blocks) {
        if (std::count(slot->devices.begin(), slot->devices.end(), device) != 0)
          slot->blocks.emplace_back(device, block);
      }
      self->Settle(turn, *slot);
    };
    if (old->settled) {
      turn.Then(std::move(settle));
    } else {
      old->on_settled.push_back(std::move(settle));
    }
  });
}

void HostImpl::HandleDelete(const Op& op) {
  Turn turn(*this);
  absl::Status error;
  for (uint64_t array : op.delete_().arrays()) {
    error.Update(Find(turn, array).status());
    RemoveArray(turn, array);
  }
  for (const ShardRef& shard : op.delete_().shards()) {
    error.Update(FindShard(turn, shard).status());
    RemoveShard(turn, shard);
  }
  if (error.ok()) {
    turn.DoneLazily(op.seq());
  } else {
    turn.Fail(op.seq(), error);
  }
}

}  // namespace parkway::engine
