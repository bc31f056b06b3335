// Launches of an EngineHost: bound to their inputs when read, taken from their context's queue in order, answered when
// over.
#include <algorithm>
#include <chrono>
#include <ctime>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/limits.h"
#include "base/status.h"
#include "base/status_wire.h"
#include "engine/host_impl.h"

namespace parkway::engine {
namespace {

constexpr auto kPromised = Slot::State::kPromised;
constexpr int kQuickNeededAtMost = 64;

absl::Duration ThreadCpuTime() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return absl::DurationFromTimespec(now);
}

// Learns from how long a launch took to return whether the next may run on the reading thread.
void Learn(LoadedProgram& program, absl::Duration took) {
  if (took <= limits::kInlineLaunch) {
    ++program.quick_in_row;
    return;
  }
  if (program.quick()) program.quick_needed = std::min(program.quick_needed * 2, kQuickNeededAtMost);
  program.quick_in_row = 0;
}

}  // namespace

// ---- Reading a launch ----------------------------------------------------------------------------------------------

void HostImpl::HandleLaunch(const Op& op) {
  auto item = std::make_shared<LaunchItem>();
  item->seq = op.seq();
  item->context = op.context();
  item->session = op.session();
  Turn turn(*this);
  absl::Status error = BindLaunch(turn, op, item);
  absl::StatusOr<ContextEntryRef> context = FindContext(turn, op.context());
  error.Update(context.status());
  error.Update(PromiseOutputs(turn, op.launch(), *item));
  TakeDonated(turn, op.launch(), *item);
  if (error.ok()) return Enqueue(turn, *context, item);
  ContextEntry none;
  FailItem(turn, none, *item, error);
}

absl::Status HostImpl::BindLaunch(Turn& turn, const Op& op, const ItemRef& item) {
  const Launch& launch = op.launch();
  auto it = loaded_.find(launch.executable());
  if (it == loaded_.end()) {
    return absl::InvalidArgumentError(absl::StrCat("executable ", launch.executable(), " isn't on this host"));
  }
  item->program = it->second;
  const LoadedProgram& program = *item->program;
  const LoadSpec& spec = program.spec;
  if (program.context != op.context()) {
    return absl::InvalidArgumentError(absl::StrCat("program '", spec.name, "' was loaded in context ", program.context,
                                                   " and can't be launched in context ", op.context()));
  }
  if (launch.arguments_size() != static_cast<int>(spec.parameters.size()) ||
      launch.outputs_size() != static_cast<int>(spec.outputs.size())) {
    return absl::InvalidArgumentError(absl::StrCat(
        "program '", spec.name, "' takes ", spec.parameters.size(), " arguments and has ", spec.outputs.size(),
        " outputs; it was launched with ", launch.arguments_size(), " and ", launch.outputs_size()));
  }
  for (int donated : launch.donated()) {
    if (donated < 0 || donated >= launch.arguments_size()) {
      return absl::InvalidArgumentError(absl::StrCat("program '", spec.name, "' can't donate argument ", donated));
    }
    item->donated.push_back(donated);
  }
  PARKWAY_RETURN_IF_ERROR(BindReads(launch, *item));
  item->arguments.reserve(launch.arguments_size());
  for (const Operand& operand : launch.arguments()) {
    Argument& argument = item->arguments.emplace_back(BindArgument(turn, operand, program));
    for (const Piece& piece : argument.pieces) {
      ++piece.slot->uses;
      item->inputs.push_back(piece.slot);
    }
  }
  return absl::OkStatus();
}

absl::Status HostImpl::BindReads(const Launch& launch, LaunchItem& item) const {
  const std::vector<Type>& outputs = item.program->spec.outputs;
  for (const Read& read : launch.reads()) {
    if (read.shard().array() >= outputs.size()) {
      return absl::InvalidArgumentError(
          absl::StrCat("a read of output ", read.shard().array(), " of program '", item.program->spec.name, "'"));
    }
    auto local = local_of_.find(read.shard().device());
    if (local == local_of_.end()) continue;  // another host's to answer
    const auto output = static_cast<int>(read.shard().array());
    item.reads.push_back({output, local->second, read.read()});
    if (DenseBytes(outputs[output]) <= static_cast<int64_t>(limits::kInlineReadBytes)) ++item.reads_left;
  }
  return absl::OkStatus();
}

absl::Status HostImpl::PromiseOutputs(Turn& turn, const Launch& launch, LaunchItem& item) {
  std::vector<int> devices;
  if (item.program != nullptr) {
    devices = item.program->local_devices;
  } else {
    for (int i = 0; i < engine_.capabilities().devices; ++i) devices.push_back(i);
  }
  absl::Status error;
  for (int i = 0; i < launch.outputs_size(); ++i) {
    std::string kind;
    if (item.program != nullptr && i < static_cast<int>(item.program->spec.output_memory_kinds.size())) {
      kind = item.program->spec.output_memory_kinds[i];
    }
    absl::StatusOr<SlotRef> slot = Promise(turn, launch.outputs(i), devices, std::move(kind));
    error.Update(slot.status());
    if (!slot.ok()) continue;
    (*slot)->origin = item.context;
    if (InArena((*slot)->memory_kind)) {  // nobody may write on it before it has been copied
      ++(*slot)->uses;
      item.to_move.push_back(*slot);
    }
    item.outputs.push_back(*std::move(slot));
  }
  return error;
}

Argument HostImpl::BindArgument(Turn& turn, const Operand& operand, const LoadedProgram& program) {
  Argument argument;
  if (operand.array() != 0) {
    absl::StatusOr<SlotRef> slot = Find(turn, operand.array());
    if (slot.ok()) {
      argument.pieces.push_back({*std::move(slot), 0});
    } else {
      argument.error = slot.status();
    }
    return argument;
  }
  argument.whole = false;
  if (operand.shards_size() != static_cast<int>(program.spec.device_ids.size())) {
    argument.error = absl::InvalidArgumentError(
        absl::StrCat("it has ", operand.shards_size(), " shards for ", program.spec.device_ids.size(), " devices"));
    return argument;
  }
  for (int position : program.positions) {
    const ShardRef& shard = operand.shards(position);
    if (shard.device() != program.spec.device_ids[position]) {
      argument.error =
          absl::InvalidArgumentError(absl::StrCat("its shard ", position, " lies on device ", shard.device(),
                                                  " instead of device ", program.spec.device_ids[position]));
      return argument;
    }
    absl::StatusOr<Piece> piece = FindShard(turn, shard);
    if (!piece.ok()) {
      argument.error = piece.status();
      return argument;
    }
    argument.pieces.push_back(*std::move(piece));
  }
  return argument;
}

// Donated arguments are gone for whatever comes later, whether the launch succeeds or not.
void HostImpl::TakeDonated(Turn& turn, const Launch& launch, LaunchItem& item) {
  if (item.donated.empty()) return;
  absl::flat_hash_map<Slot*, int> own;
  for (const SlotRef& slot : item.inputs) ++own[slot.get()];
  for (int index : item.donated) {
    const Operand& operand = launch.arguments(index);
    if (index < static_cast<int>(item.arguments.size())) {
      for (const Piece& piece : item.arguments[index].pieces) {
        item.sole_users.emplace_back(piece.slot, own[piece.slot.get()]);
      }
    }
    if (operand.array() != 0) RemoveArray(turn, operand.array());
    for (const ShardRef& shard : operand.shards()) {
      if (local_of_.contains(shard.device())) RemoveShard(turn, shard);
    }
  }
}

void HostImpl::Enqueue(Turn& turn, const ContextEntryRef& context, const ItemRef& item) {
  if (unfinished_ >= static_cast<size_t>(limits::kMaxQueuedOps)) {
    const absl::Status error = absl::ResourceExhaustedError(
        absl::StrCat("more than ", limits::kMaxQueuedOps, " launches wait on host ", proxy_.host()));
    if (context->shared) context->cause.Update(error);
    return FailItem(turn, *context, *item, error);
  }
  ++unfinished_;
  context->unfinished.insert(item);
  context->queue.push_back(item);
  if (context->running || context->queue.size() > 1 || !ReadyToLaunch(turn, context, *item)) return;
  if (!MayRunInline(*context, *item)) return PostDrain(turn, context);
  context->running = true;
  ++launches_inline_;
  turn.Then([self = shared_from_this(), context] { self->Drain(context); });
}

// A launch together with other hosts waits for them where launches block at all.
bool HostImpl::MayRunInline(const ContextEntry& context, const LaunchItem& item) const {
  return !engine_.capabilities().launch_may_block || (!context.shared && item.program->quick());
}

// ---- Taking from the queue -----------------------------------------------------------------------------------------

// Whether the launch at the head has all that it needs; else the queue will be kicked when what it lacks is there.
bool HostImpl::ReadyToLaunch(Turn& /*turn*/, const ContextEntryRef& context, LaunchItem& item) {
  if (item.waiting) return false;
  if (!context->cause.ok()) return true;  // to fail
  auto wait_for = [&](std::vector<Task>& waiters) {
    item.waiting = true;
    waiters.push_back([self = shared_from_this(), context] { self->Kick(context); });
    return false;
  };
  LoadedProgram& program = *item.program;
  if (program.state == LoadedProgram::State::kLoading) return wait_for(program.waiters);
  for (; item.checked < item.inputs.size(); ++item.checked) {
    Slot& slot = *item.inputs[item.checked];
    if (slot.state == kPromised) return wait_for(slot.on_launched);
  }
  // A member whose input fails late would stay out of a collective that the others have begun. Outputs of this context
  // need no wait: their failure closes it.
  for (; context->shared && item.settled < item.inputs.size(); ++item.settled) {
    Slot& slot = *item.inputs[item.settled];
    if (!slot.settled && slot.origin != context->id) return wait_for(slot.on_settled);
  }
  for (const auto& [slot, own] : item.sole_users) {
    if (slot->uses > own) return wait_for(slot->on_unused);
  }
  return true;
}

void HostImpl::Kick(const ContextEntryRef& context) {
  Turn turn(*this);
  if (context->queue.empty()) return;
  LaunchItem& head = *context->queue.front();
  head.waiting = false;
  if (context->running || !ReadyToLaunch(turn, context, head)) return;
  PostDrain(turn, context);
}

void HostImpl::PostDrain(Turn& /*turn*/, const ContextEntryRef& context) {
  if (stopped_) return;
  context->running = true;
  ++launches_queued_;
  if (context->launcher == nullptr) context->launcher = threads_.make_launcher(absl::StrCat("launch-", context->id));
  context->launcher->Post([self = shared_from_this(), context] { self->Drain(context); });
}

void HostImpl::Drain(const ContextEntryRef& context) {
  while (true) {
    ItemRef item;
    {
      Turn turn(*this);
      if (stopped_ || context->queue.empty() || !ReadyToLaunch(turn, context, *context->queue.front())) {
        context->running = false;
        return;
      }
      item = std::move(context->queue.front());
      context->queue.pop_front();
    }
    RunLaunch(context, item);
  }
}

// Takes the pieces of all arguments, in their order. False when the launch was ended instead.
bool HostImpl::BeginLaunch(const ContextEntryRef& context, const ItemRef& item,
                           std::vector<absl::StatusOr<ArrayRef>>& pieces, ExecutableRef& executable) {
  Turn turn(*this);
  if (item->answered || stopped_) return false;
  const LoadedProgram& program = *item->program;
  executable = program.ref;
  if (context->cause.ok() && program.state == LoadedProgram::State::kFailed) {
    // The others may have launched it: nothing that follows would meet its counterpart.
    if (context->shared) context->cause = program.error;
    FailItem(turn, *context, *item, program.error);
    Finish(*context, item);
    return false;
  }
  if (!context->cause.ok()) {
    FailItem(turn, *context, *item, context->cause);
    Finish(*context, item);
    return false;
  }
  pieces.reserve(item->inputs.size());
  for (const Argument& argument : item->arguments) {
    for (size_t i = 0; i < argument.pieces.size(); ++i) {
      const Slot& slot = *argument.pieces[i].slot;
      if (!argument.whole) {
        pieces.push_back(Shard(turn, slot, argument.pieces[i].device));
        continue;
      }
      absl::StatusOr<ArrayRef> array = Shard(turn, slot, -1);
      for (int device : program.local_devices) {
        if (array.ok() && !slot.faults.empty()) array = Shard(turn, slot, device);
      }
      pieces.push_back(std::move(array));
    }
  }
  return true;
}

// An error that has come with an array goes on as it is; one of this launch says where.
absl::StatusOr<ArrayRef> HostImpl::Resolve(const LaunchItem& item, int index,
                                           absl::Span<const absl::StatusOr<ArrayRef>> pieces) {
  const LoadedProgram& program = *item.program;
  const Argument& argument = item.arguments[index];
  auto refuse = [&](const absl::Status& status) {
    return Annotate(status, absl::StrCat("argument ", index, " of program '", program.spec.name, "'"));
  };
  if (!argument.error.ok()) return refuse(argument.error);
  for (const absl::StatusOr<ArrayRef>& piece : pieces) {
    if (!piece.ok()) return piece.status();
  }
  const std::vector<int>& devices = program.local_devices;
  ArrayRef array;
  if (argument.whole && *pieces[0] != nullptr && (*pieces[0])->devices() == absl::MakeConstSpan(devices)) {
    array = *pieces[0];
  } else {
    std::vector<ShardOf> shards;
    for (size_t i = 0; i < devices.size(); ++i) {
      const ArrayRef& from = *pieces[argument.whole ? 0 : i];
      if (from == nullptr || std::count(from->devices().begin(), from->devices().end(), devices[i]) == 0) {
        return refuse(
            absl::InvalidArgumentError(absl::StrCat("the array has no shard on device ", LeaseDevice(devices[i]))));
      }
      shards.push_back({from, devices[i]});
    }
    PARKWAY_ASSIGN_OR_RETURN(array, engine_.Assemble(shards));
  }
  for (int device : devices) {
    const std::optional<std::string> mismatch = Mismatch(array->type(device), program.spec.parameters[index]);
    if (!mismatch.has_value()) continue;
    return refuse(
        absl::InvalidArgumentError(absl::StrCat("its shard on device ", LeaseDevice(device), " is ", *mismatch)));
  }
  return array;
}

void HostImpl::RunLaunch(const ContextEntryRef& context, const ItemRef& item) {
  std::vector<absl::StatusOr<ArrayRef>> pieces;
  ExecutableRef executable;
  if (!BeginLaunch(context, item, pieces, executable)) return;
  const LoadedProgram& program = *item->program;
  absl::Status lost, failed;  // the first lost input; why there can be no launch at all
  std::vector<ArrayRef> arguments;
  std::vector<int> donated = item->donated;
  auto next = absl::MakeConstSpan(pieces);
  for (int i = 0; i < static_cast<int>(item->arguments.size()); ++i) {
    const size_t count = item->arguments[i].pieces.size();
    absl::StatusOr<ArrayRef> array = Resolve(*item, i, next.subspan(0, count));
    next.remove_prefix(count);
    if (!array.ok()) {
      lost.Update(array.status());
      if (!context->shared) break;
      array = engine_.Zeros(program.local_devices, program.spec.parameters[i]);
      failed.Update(array.status());
      if (!array.ok()) break;
      donated.erase(std::remove(donated.begin(), donated.end(), i), donated.end());
    }
    arguments.push_back(*std::move(array));
  }
  if (!context->shared) failed = lost;
  pieces.clear();
  absl::StatusOr<LaunchResult> result = LaunchResult();
  if (!failed.ok()) result = failed;
  const auto start = std::chrono::steady_clock::now();
  item->begun = start;
  const absl::Duration cpu_start = ThreadCpuTime();
  if (failed.ok()) {
    result = engine_.Launch(*executable, arguments, donated,
                            [self = shared_from_this(), context, item](const absl::Status& status) {
                              self->OnLaunchEnd(context, item, status);
                            });
  }
  const absl::Duration took = absl::FromChrono(std::chrono::steady_clock::now() - start);
  // A launch that only lost its processor for a while counts by what it computed.
  const absl::Duration worked = ThreadCpuTime() - cpu_start;
  arguments.clear();
  FinishLaunchCall(context, item, std::move(result), lost, took <= limits::kInlineLaunchPause ? worked : took);
}

// ---- After the launch ----------------------------------------------------------------------------------------------

void HostImpl::FinishLaunchCall(const ContextEntryRef& context, const ItemRef& item,
                                absl::StatusOr<LaunchResult> result, const absl::Status& lost_input,
                                absl::Duration took) {
  Turn turn(*this);
  Learn(*item->program, took);
  item->launched = true;
  for (SlotRef& slot : item->inputs) {
    Unuse(turn, *slot);
    turn.Drop(std::move(slot));
  }
  item->inputs.clear();
  item->sole_users.clear();
  for (Argument& argument : item->arguments) {
    for (Piece& piece : argument.pieces) turn.Drop(std::move(piece.slot));
  }
  item->arguments.clear();
  if (result.ok() && result->outputs.size() != item->outputs.size()) {
    result =
        absl::FailedPreconditionError(absl::StrCat("the engine made ", result->outputs.size(), " outputs of program '",
                                                   item->program->spec.name, "' instead of ", item->outputs.size()));
  }
  if (!result.ok()) return EndLaunch(turn, context, item, lost_input.ok() ? result.status() : lost_input);
  if (!lost_input.ok()) {
    for (ArrayRef& array : result->outputs) turn.Drop(std::move(array));
    FailItem(turn, *context, *item, lost_input);
  } else {
    for (size_t i = 0; i < item->outputs.size(); ++i) {
      SetLaunched(turn, *item->outputs[i], std::move(result->outputs[i]));
    }
    if (!item->reads.empty()) turn.Then([self = shared_from_this(), item] { self->StartRideReads(item); });
  }
  if (item->early.has_value()) EndLaunch(turn, context, item, *item->early);
}

void HostImpl::OnLaunchEnd(const ContextEntryRef& context, const ItemRef& item, const absl::Status& status) {
  Turn turn(*this);
  if (!item->launched) {
    item->early = status;
    return;
  }
  EndLaunch(turn, context, item, status);
}

void HostImpl::EndLaunch(Turn& turn, const ContextEntryRef& context, const ItemRef& item, const absl::Status& status) {
  if (item->ended) return;
  item->ended = true;
  if (!status.ok()) {
    if (context->shared) context->cause.Update(status);
    FailItem(turn, *context, *item, status);
  } else {
    MoveOutputs(turn, context, item);
    for (const SlotRef& slot : item->outputs) {
      if (!InArena(slot->memory_kind)) Settle(turn, *slot);
    }
    AnswerIfComplete(turn, *item);
  }
  if (context->unfinished.erase(item) > 0) {
    turn.Drop(item);
    --unfinished_;
  }
}

// Takes it out of the context's books.
void HostImpl::Finish(ContextEntry& context, const ItemRef& item) {
  if (context.unfinished.erase(item) > 0) --unfinished_;
}

// Its outputs fail and the proxy is told, with its reads, once. What the engine still does for it goes on.
void HostImpl::FailItem(Turn& turn, ContextEntry& context, LaunchItem& item, const absl::Status& status) {
  for (const SlotRef& slot : item.outputs) SetFailed(turn, *slot, status);
  for (const SlotRef& slot : item.to_move) Unuse(turn, *slot);
  item.to_move.clear();
  if (!item.launched) {
    for (SlotRef& slot : item.inputs) {
      Unuse(turn, *slot);
      turn.Drop(std::move(slot));
    }
    item.inputs.clear();
  }
  if (item.answered) return;
  item.answered = true;
  turn.Fail(item.seq, status, context.shared && IsPeerComplaint(status));
  absl::flat_hash_set<uint64_t> told;
  for (ReadResult& result : item.results) {
    told.insert(result.read());
    *turn.events().add_reads() = std::move(result);
  }
  item.results.clear();
  for (const RideRead& read : item.reads) {
    if (item.reads_started || told.contains(read.read)) continue;
    ReadResult& result = *turn.events().add_reads();
    result.set_read(read.read);
    *result.mutable_status() = ToProto(status);
  }
}

void HostImpl::AnswerIfComplete(Turn& turn, LaunchItem& item) {
  if (item.answered || !item.ended || item.reads_left > 0 || item.moves_left > 0) return;
  item.answered = true;
  turn.Done(item.seq);
  Ran* ran = turn.events().add_ran();
  ran->set_seq(item.seq);
  ran->set_nanoseconds(std::chrono::nanoseconds(std::chrono::steady_clock::now() - item.begun).count());
  for (ReadResult& result : item.results) *turn.events().add_reads() = std::move(result);
  item.results.clear();
}

void HostImpl::StartRideReads(const ItemRef& item) {
  {
    Turn turn(*this);
    if (item->answered) return;  // with errors
    item->reads_started = true;
  }
  for (const RideRead& read : item->reads) {
    const Piece piece{item->outputs[read.output], read.device};
    const int64_t size = DenseBytes(item->program->spec.outputs[read.output]);
    if (size > static_cast<int64_t>(limits::kInlineReadBytes)) {
      ViewShard(piece, [self = shared_from_this(), id = read.read](absl::StatusOr<Bytes> bytes) {
        self->AnswerRead(id, std::move(bytes));
      });
      continue;
    }
    ViewShard(piece, [self = shared_from_this(), item, id = read.read](absl::StatusOr<Bytes> bytes) {
      ReadResult result;
      result.set_read(id);
      *result.mutable_status() = ToProto(bytes.status());
      if (bytes.ok()) result.set_inline_bytes(bytes->data, bytes->size);
      Turn turn(*self);
      --item->reads_left;
      (item->answered ? *turn.events().add_reads() : item->results.emplace_back()) = std::move(result);
      self->AnswerIfComplete(turn, *item);
    });
  }
}

void HostImpl::HandleAbort(const Op& op) {
  const uint64_t seq = op.abort().launch_seq();
  Turn turn(*this);
  for (auto& [id, context] : contexts_) {
    auto it = std::find_if(context->queue.begin(), context->queue.end(),
                           [seq](const ItemRef& item) { return item->seq == seq; });
    if (it == context->queue.end() || context->shared) continue;
    const ItemRef item = *it;
    context->queue.erase(it);
    FailItem(
        turn, *context, *item,
        absl::CancelledError(absl::StrCat("program '", item->program->spec.name, "' was stopped before it began")));
    Finish(*context, item);
    turn.Drop(item);
    turn.Then([self = shared_from_this(), context = context] { self->Kick(context); });
    return;
  }
  // One that has begun, or that others wait for, goes on: stopping it takes a new engine.
}

}  // namespace parkway::engine
