// Executables and contexts of an EngineHost.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/limits.h"
#include "base/status.h"
#include "base/status_wire.h"
#include "engine/host_impl.h"

namespace parkway::engine {
namespace {

constexpr auto kLoading = LoadedProgram::State::kLoading;
constexpr auto kLoaded = LoadedProgram::State::kLoaded;
constexpr auto kFailed = LoadedProgram::State::kFailed;

absl::Status AddTypes(const google::protobuf::RepeatedPtrField<TypeProto>& protos, const char* what,
                      std::vector<Type>& types) {
  for (const TypeProto& proto : protos) {
    absl::StatusOr<Type> type = TypeFromProto(proto);
    if (!type.ok()) return Annotate(type.status(), absl::StrCat(what, " ", types.size()));
    types.push_back(*std::move(type));
  }
  return absl::OkStatus();
}

}  // namespace

// ---- Executables ---------------------------------------------------------------------------------------------------

absl::StatusOr<LoadedRef> HostImpl::MakeLoaded(LoadExecutable& load, uint64_t context) const {
  auto loaded = std::make_shared<LoadedProgram>();
  loaded->id = load.executable();
  loaded->context = context;
  LoadSpec& spec = loaded->spec;
  spec.name = load.name();
  spec.compile_options = std::move(*load.mutable_compile_options());
  PARKWAY_RETURN_IF_ERROR(AddTypes(load.parameters(), "parameter", spec.parameters));
  PARKWAY_RETURN_IF_ERROR(AddTypes(load.outputs(), "output", spec.outputs));
  for (int device : load.devices()) {
    auto it = local_of_.find(device);
    const int local = it == local_of_.end() ? -1 : it->second;
    if (local >= 0) {
      if (std::find(loaded->local_devices.begin(), loaded->local_devices.end(), local) != loaded->local_devices.end()) {
        return absl::InvalidArgumentError(absl::StrCat("it names device ", device, " twice"));
      }
      loaded->local_devices.push_back(local);
      loaded->positions.push_back(static_cast<int>(spec.device_ids.size()));
    }
    spec.device_ids.push_back(device);
    spec.local_devices.push_back(local);
  }
  if (loaded->local_devices.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("none of its devices is on host ", proxy_.host()));
  }
  if (load.output_memory_kinds_size() != 0 && load.output_memory_kinds_size() != load.outputs_size()) {
    return absl::InvalidArgumentError(absl::StrCat("it has ", load.outputs_size(), " outputs and ",
                                                   load.output_memory_kinds_size(), " memory kinds for them"));
  }
  for (size_t i = 0; i < spec.outputs.size(); ++i) {
    const bool given = load.output_memory_kinds_size() != 0;
    PARKWAY_ASSIGN_OR_RETURN(std::string kind, MemoryKind(given ? load.output_memory_kinds(static_cast<int>(i)) : ""));
    spec.output_memory_kinds.push_back(std::move(kind));
  }
  return loaded;
}

void HostImpl::HandleLoad(Op& op) {
  LoadExecutable& load = *op.mutable_load();
  absl::StatusOr<LoadedRef> made = MakeLoaded(load, op.context());
  bool fetch = false;
  ProgramRef program;
  {
    Turn turn(*this);
    absl::StatusOr<ContextEntryRef> context = FindContext(turn, op.context());
    absl::Status error = made.status();
    error.Update(context.status());
    if (loaded_.contains(load.executable())) {
      error.Update(absl::InvalidArgumentError(absl::StrCat("executable ", load.executable(), " already exists here")));
    }
    if (error.ok()) {
      absl::StatusOr<ProgramRef> found = FindProgram(turn, load, fetch);
      error.Update(found.status());
      if (found.ok()) program = *found;
    }
    if (!error.ok()) {
      Loaded& event = *turn.events().add_loaded();
      event.set_executable(load.executable());
      *event.mutable_status() = ToProto(Annotate(error, absl::StrCat("loading program '", load.name(), "'")));
      return;
    }
    loaded_.emplace(load.executable(), *made);
    LoadWhenReady(turn, *made, program, *context);
  }
  if (fetch) FetchProgram(program, load.transfer());
}

void HostImpl::FetchProgram(const ProgramRef& program, const Transfer& transfer) {
  bulk_.Fetch(transfer, [self = shared_from_this(), program](absl::StatusOr<Bytes> bytes) {
    self->OnProgram(program, std::move(bytes));
  });
}

absl::StatusOr<ProgramRef> HostImpl::FindProgram(Turn& turn, LoadExecutable& load, bool& fetch) {
  if (!load.program().empty()) {
    for (auto it = programs_.begin(); it != programs_.end(); ++it) {
      if ((*it)->hash != load.program()) continue;
      programs_.splice(programs_.begin(), programs_, it);
      if (!programs_.front()->bytes.has_value() && load.has_transfer()) {
        programs_.front()->others.push_back(load.transfer());
      }
      return programs_.front();
    }
  }
  auto program = std::make_shared<Program>();
  program->hash = load.program();
  fetch = load.has_transfer();
  if (!fetch) {
    if (load.inline_bytes().empty()) {
      return absl::FailedPreconditionError("its bytes aren't here any more and didn't come with the operation");
    }
    program->bytes = Bytes::OfString(std::move(*load.mutable_inline_bytes()));
  }
  if (!program->hash.empty()) programs_.push_front(program);
  if (!fetch) KeepProgram(turn, program);
  return program;
}

void HostImpl::OnProgram(const ProgramRef& program, absl::StatusOr<Bytes> bytes) {
  Turn turn(*this);
  if (!bytes.ok() && !program->others.empty()) {
    turn.Then(
        [self = shared_from_this(), program, next = program->others.back()] { self->FetchProgram(program, next); });
    program->others.pop_back();
    return;
  }
  program->others.clear();
  program->bytes = std::move(bytes);
  KeepProgram(turn, program);
  turn.Then(program->waiters);
}

// Counts bytes that have come, and forgets the programs that were not asked for the longest.
void HostImpl::KeepProgram(Turn& turn, const ProgramRef& program) {
  auto it = std::find(programs_.begin(), programs_.end(), program);
  if (it == programs_.end()) return;
  if (!program->bytes->ok()) {
    programs_.erase(it);
    return;
  }
  program_bytes_ += static_cast<int64_t>((*program->bytes)->size);
  for (auto last = programs_.end(); program_bytes_ > limits::kProgramCacheBytes && last != programs_.begin();) {
    --last;
    if (!(*last)->bytes.has_value()) continue;  // still coming
    program_bytes_ -= static_cast<int64_t>((**(*last)->bytes).size);
    turn.Drop(*last);
    last = programs_.erase(last);
  }
}

void HostImpl::LoadWhenReady(Turn& turn, const LoadedRef& loaded, const ProgramRef& program,
                             const ContextEntryRef& context) {
  if (loaded->state != kLoading) return;  // its context was closed meanwhile
  auto again = [self = shared_from_this(), loaded, program, context] {
    Turn turn(*self);
    self->LoadWhenReady(turn, loaded, program, context);
  };
  if (!program->bytes.has_value()) return program->waiters.push_back(std::move(again));
  if (context->state == ContextEntry::State::kOpening) return context->waiters.push_back(std::move(again));
  if (!program->bytes->ok()) return FinishLoad(turn, *loaded, program->bytes->status());
  loaded->spec.program = **program->bytes;
  loaded->spec.context = context->ref;
  turn.Then([self = shared_from_this(), loaded, spec = loaded->spec]() mutable {
    self->threads_.pool->Post([self, loaded, spec = std::move(spec)]() mutable {
      absl::StatusOr<ExecutableRef> result = self->engine_.Load(spec);
      spec = {};
      Turn turn(*self);
      self->FinishLoad(turn, *loaded, std::move(result));
    });
  });
}

void HostImpl::FinishLoad(Turn& turn, LoadedProgram& loaded, absl::StatusOr<ExecutableRef> result) {
  if (loaded.state != kLoading) {
    if (result.ok()) turn.Drop(*std::move(result));
    return;
  }
  turn.Drop(std::move(loaded.spec.program.owner));
  loaded.spec.program = {};
  turn.Drop(std::move(loaded.spec.context));
  loaded.spec.context = nullptr;
  absl::Status status = result.status();
  if (result.ok()) {
    loaded.state = kLoaded;
    loaded.ref = *std::move(result);
  } else {
    status = Annotate(status, absl::StrCat("loading program '", loaded.spec.name, "'"));
    loaded.state = kFailed;
    loaded.error = status;
  }
  Loaded& event = *turn.events().add_loaded();
  event.set_executable(loaded.id);
  *event.mutable_status() = ToProto(status);
  turn.Then(loaded.waiters);
}

void HostImpl::HandleUnload(const Op& op) {
  Turn turn(*this);
  auto it = loaded_.find(op.unload().executable());
  if (it == loaded_.end()) {
    return turn.Fail(op.seq(), absl::InvalidArgumentError(
                                   absl::StrCat("executable ", op.unload().executable(), " isn't on this host")));
  }
  turn.Drop(std::move(it->second));
  loaded_.erase(it);
}

// ---- Contexts ------------------------------------------------------------------------------------------------------

absl::StatusOr<ContextEntryRef> HostImpl::FindContext(Turn& /*turn*/, uint64_t id) {
  auto it = contexts_.find(id);
  if (it != contexts_.end()) return it->second;
  if (stopped_) return absl::CancelledError("this engine's lease has ended");
  for (const auto& [closed, cause] : closed_) {
    if (closed == id) return cause;
  }
  return absl::InvalidArgumentError(absl::StrCat("context ", id, " isn't open on host ", proxy_.host()));
}

void HostImpl::TellContext(Turn& turn, uint64_t context, bool open, const absl::Status& status) {
  ContextState& event = *turn.events().add_contexts();
  event.set_context(context);
  event.set_open(open);
  *event.mutable_status() = ToProto(status);
}

absl::StatusOr<ContextSpec> HostImpl::MakeContextSpec(const OpenContext& open) {
  ContextSpec spec;
  spec.id = open.context();
  spec.rank = -1;
  int devices = 0;
  for (const parkway::ContextMember& member : open.members()) {
    const int rank = static_cast<int>(spec.members.size());
    if (member.host() == proxy_.host()) {
      if (member.incarnation() != options_.incarnation) {
        return absl::FailedPreconditionError(
            absl::StrCat("it was meant for another incarnation of host ", proxy_.host(), "'s engine"));
      }
      if (spec.rank >= 0) {
        return absl::InvalidArgumentError(absl::StrCat("host ", proxy_.host(), " is a member of it twice"));
      }
      spec.rank = rank;
    }
    spec.members.push_back({rank, {member.devices().begin(), member.devices().end()}});
    devices += member.devices_size();
  }
  if (spec.rank < 0) return absl::InvalidArgumentError(absl::StrCat("host ", proxy_.host(), " is no member of it"));
  if (devices > limits::kMaxSimDevices) {  // engines that connect their devices know a lower limit of their own
    return absl::InvalidArgumentError(absl::StrCat("it would have ", devices, " devices; at most ",
                                                   limits::kMaxSimDevices, " can run a program together"));
  }
  spec.publish = [weak = weak_from_this(), id = open.context()](std::string key, std::string value) {
    const std::shared_ptr<HostImpl> self = weak.lock();
    if (self == nullptr) return;
    Turn turn(*self);
    if (!self->contexts_.contains(id)) return;
    KeyValue& event = *turn.events().add_key_values();
    event.set_context(id);
    event.set_key(std::move(key));
    event.set_value(std::move(value));
  };
  return spec;
}

void HostImpl::HandleOpenContext(const Op& op) {
  const uint64_t id = op.open_context().context();
  absl::StatusOr<ContextSpec> spec = MakeContextSpec(op.open_context());
  Turn turn(*this);
  absl::Status error = spec.status();
  if (stopped_) error.Update(absl::CancelledError("this engine's lease has ended"));
  const bool known = contexts_.contains(id) || std::any_of(closed_.begin(), closed_.end(),
                                                           [id](const auto& closed) { return closed.first == id; });
  if (known) error.Update(absl::InvalidArgumentError("it was opened before"));
  if (!error.ok()) return TellContext(turn, id, false, Annotate(error, absl::StrCat("opening context ", id)));
  auto context = std::make_shared<ContextEntry>();
  context->id = id;
  context->shared = spec->members.size() > 1;
  contexts_.emplace(id, context);
  if (auto early = early_keys_.find(id); early != early_keys_.end()) {
    context->keys = std::move(early->second);
    early_keys_.erase(early);
  }
  turn.Then([self = shared_from_this(), context, spec = *std::move(spec)]() mutable {
    self->threads_.pool->Post([self, context, spec = std::move(spec)]() mutable {
      self->engine_.OpenContext(std::move(spec), [self, context](absl::StatusOr<ContextRef> result) {
        self->FinishOpen(context, std::move(result));
      });
    });
  });
}

void HostImpl::FinishOpen(const ContextEntryRef& context, absl::StatusOr<ContextRef> result) {
  Turn turn(*this);
  held_keys_ -= context->keys.size();
  std::vector<std::pair<std::string, std::string>> keys = std::exchange(context->keys, {});
  if (context->state == ContextEntry::State::kClosed) {  // meanwhile
    if (!result.ok()) return TellContext(turn, context->id, false, context->cause);
    return turn.Then(
        [self = shared_from_this(), context, client = *std::move(result)] { self->DropClient(context, client); });
  }
  if (!result.ok()) {
    const absl::Status error = Annotate(result.status(), absl::StrCat("opening context ", context->id));
    EndContext(turn, context, error);
    return TellContext(turn, context->id, false, error);
  }
  context->state = ContextEntry::State::kOpen;
  context->ref = *std::move(result);
  TellContext(turn, context->id, true, absl::OkStatus());
  turn.Then([client = context->ref, keys = std::move(keys)] {
    for (const auto& [key, value] : keys) client->OnKey(key, value);
  });
  turn.Then(context->waiters);
}

void HostImpl::EndContext(Turn& turn, const ContextEntryRef& context, const absl::Status& cause) {
  context->state = ContextEntry::State::kClosed;
  context->cause = cause;
  contexts_.erase(context->id);
  closed_.emplace_front(context->id, cause);
  if (closed_.size() > limits::kMaxClosedContexts) closed_.pop_back();
  std::vector<ItemRef> items(context->unfinished.begin(), context->unfinished.end());
  std::sort(items.begin(), items.end(), [](const ItemRef& a, const ItemRef& b) { return a->seq < b->seq; });
  context->queue.clear();
  for (const ItemRef& item : items) {
    FailItem(turn, *context, *item, cause);
    Finish(*context, item);
    turn.Drop(item);
  }
  for (auto& [id, loaded] : loaded_) {
    if (loaded->context != context->id) continue;
    if (loaded->state == kLoading) FinishLoad(turn, *loaded, cause);
    loaded->state = kFailed;
    loaded->error = cause;
    turn.Drop(std::move(loaded->ref));
    loaded->ref = nullptr;
  }
  turn.Then(context->waiters);
}

void HostImpl::HandleCloseContext(const Op& op) {
  const uint64_t id = op.close_context().context();
  absl::Status cause = FromProto(op.close_context().cause());
  if (cause.ok()) cause = absl::CancelledError(absl::StrCat("context ", id, " was closed"));
  Turn turn(*this);
  absl::StatusOr<ContextEntryRef> context = FindContext(turn, id);
  if (!context.ok()) return TellContext(turn, id, false, context.status());
  if (id == 0) return turn.Fail(op.seq(), absl::InvalidArgumentError("context 0 is always open"));
  const bool opening = (*context)->state == ContextEntry::State::kOpening;
  EndContext(turn, *context, cause);
  if (opening) return;  // FinishOpen goes on
  turn.Then([self = shared_from_this(), context = *context]() mutable {
    self->DropClient(context, std::exchange(context->ref, nullptr));
  });
}

void HostImpl::DropClient(const ContextEntryRef& context, const ContextRef& client) {
  engine_.CloseContext(client, context->cause, [self = shared_from_this(), context] {
    Turn turn(*self);
    self->TellContext(turn, context->id, false, context->cause);
    if (self->stopped_ || context->launcher == nullptr) return;
    // Joins the launch thread, which may still be on its way out of a launch.
    self->threads_.pool->Post([launcher = std::move(context->launcher)]() mutable { launcher = nullptr; });
  });
}

void HostImpl::HandleKeyValue(const Op& op) {
  const KeyValue& message = op.key_value();
  Turn turn(*this);
  absl::StatusOr<ContextEntryRef> found = FindContext(turn, message.context());
  if (found.ok() && (*found)->state == ContextEntry::State::kOpen) {
    if ((*found)->ref == nullptr) {
      return turn.Fail(op.seq(), absl::InvalidArgumentError("context 0 has no members and takes no keys"));
    }
    return turn.Then(
        [client = (*found)->ref, key = message.key(), value = message.value()] { client->OnKey(key, value); });
  }
  // A member that was told earlier may publish before this host was told at all.
  if (!found.ok() && !absl::IsInvalidArgument(found.status())) return;  // closed: nobody wants it any more
  if (held_keys_ >= limits::kMaxHeldKeys) {
    return turn.Fail(op.seq(), absl::ResourceExhaustedError(absl::StrCat("more than ", limits::kMaxHeldKeys,
                                                                         " keys for contexts that aren't open yet")));
  }
  ++held_keys_;
  auto& keys = found.ok() ? (*found)->keys : early_keys_[message.context()];
  keys.emplace_back(message.key(), message.value());
}

}  // namespace parkway::engine
