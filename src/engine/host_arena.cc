// Arrays of host memory kinds, which lie in the worker's arena: made there (host_data.cc), moved there when a program
// has made them, and taken over from an earlier engine.
#include <algorithm>
#include <cstring>
#include <map>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "engine/host_impl.h"
#include "glog/logging.h"

namespace parkway::engine {

std::vector<std::string> HostImpl::ArenaKinds() const {
  std::vector<std::string> found;
  for (const std::string& kind : engine_.capabilities().memory_kinds) {
    if (InArena(kind)) found.push_back(kind);
  }
  return found;
}

bool HostImpl::InArena(const std::string& memory_kind) const {
  return options_.arena != nullptr && absl::EndsWith(memory_kind, "_host") &&
         memory_kind != engine_.capabilities().memory_kinds.front();
}

absl::StatusOr<Bytes> HostImpl::StoreShard(uint64_t session, const Slot& slot, int device, const Type& type,
                                           absl::FunctionRef<void(uint8_t* to)> write, bool keep) const {
  return options_.arena->Store({.session = session,
                                .array = slot.array,
                                .device = LeaseDevice(device),
                                .memory_kind = slot.memory_kind,
                                .type = type,
                                .kept = keep},
                               static_cast<size_t>(DenseBytes(type)), write);
}

absl::Status HostImpl::KeepShard(uint64_t session, const Piece& piece, const Bytes& bytes) {
  if (options_.arena == nullptr) {
    return absl::FailedPreconditionError("this engine has no worker that keeps arrays for the next one");
  }
  ArrayRef array;
  {
    Turn turn(*this);
    PARKWAY_ASSIGN_OR_RETURN(array, Shard(turn, *piece.slot, piece.device));
  }
  PARKWAY_ASSIGN_OR_RETURN(Bytes kept,
                           StoreShard(
                               session, *piece.slot, piece.device, array->type(piece.device),
                               [&](uint8_t* to) { std::memcpy(to, bytes.data, bytes.size); }, /*keep=*/true));
  Turn turn(*this);
  kept_.push_back(std::move(kept));
  return absl::OkStatus();
}

absl::StatusOr<ArrayRef> HostImpl::TakeOverArray(std::vector<std::pair<ArenaShard, Bytes>> shards,
                                                 std::vector<std::pair<int, Bytes>>& blocks) const {
  std::vector<HostShard> made;
  const std::string kind = shards[0].first.memory_kind;
  for (auto& [shard, bytes] : shards) {
    const int device = local_of_.at(shard.device);
    if (shard.kept) {
      // Programs may write to device memory that is donated to them, and nobody to a block.
      PARKWAY_ASSIGN_OR_RETURN(const Buffer copy, Allocate(static_cast<int64_t>(bytes.size)));
      std::memcpy(copy.data.get(), bytes.data, bytes.size);
      bytes = copy.Share();
    } else {
      blocks.emplace_back(device, bytes);
    }
    made.push_back({device, std::move(shard.type), std::move(bytes)});
  }
  return engine_.MakeArray(kind, std::move(made));
}

std::vector<ShardRef> HostImpl::TakeOver() {
  if (options_.arena == nullptr) return {};
  absl::StatusOr<std::vector<std::pair<ArenaShard, Bytes>>> left = options_.arena->TakeOver();
  if (!left.ok()) {
    LOG(ERROR) << "Arrays in host memory that an earlier engine left are lost: " << left.status().message();
    return {};
  }
  std::map<uint64_t, std::vector<std::pair<ArenaShard, Bytes>>> arrays;
  for (auto& [shard, bytes] : *left) {
    if (local_of_.contains(shard.device)) arrays[shard.array].emplace_back(std::move(shard), std::move(bytes));
  }
  std::vector<ShardRef> taken;
  for (auto& [id, shards] : arrays) {
    std::vector<std::pair<int, Bytes>> blocks;
    std::vector<int> devices;
    const std::string kind = shards[0].first.memory_kind;
    for (const auto& [shard, bytes] : shards) devices.push_back(local_of_.at(shard.device));
    absl::StatusOr<ArrayRef> array = TakeOverArray(std::move(shards), blocks);
    Turn turn(*this);
    absl::StatusOr<SlotRef> slot = array.ok() ? Promise(turn, id, devices, kind) : array.status();
    if (!slot.ok()) {
      LOG(ERROR) << "Array " << id << ", which an earlier engine left, is lost: " << slot.status().message();
      if (array.ok()) turn.Drop(*std::move(array));
      continue;
    }
    SetLaunched(turn, **slot, *std::move(array));
    (*slot)->blocks = std::move(blocks);
    Settle(turn, **slot);
    for (int device : devices) {
      ShardRef& shard = taken.emplace_back();
      shard.set_array(id);
      shard.set_device(LeaseDevice(device));
    }
  }
  return taken;
}

void HostImpl::MoveOutputs(Turn& turn, const ContextEntryRef& context, const ItemRef& item) {
  for (const SlotRef& slot : std::exchange(item->to_move, {})) {
    ++item->moves_left;
    turn.Then([self = shared_from_this(), context, item, slot] {
      self->threads_.pool->Post([self, context, item, slot] { self->MoveOutput(context, item, slot); });
    });
  }
}

void HostImpl::MoveOutput(const ContextEntryRef& context, const ItemRef& item, const SlotRef& slot) {
  ArrayRef array;
  {
    Turn turn(*this);
    array = slot->ref;
  }
  if (array == nullptr) return FinishMove(context, item, slot, array, {});  // failed meanwhile
  // The launch has ended, so the bytes are there: each view comes at once. The last one to come ends the move.
  struct Move {
    std::mutex mutex;
    std::vector<HostShard> shards;
    std::vector<std::pair<int, Bytes>> blocks;
    absl::Status error;
    size_t left = 0;
  };
  auto move = std::make_shared<Move>();
  move->left = slot->devices.size();
  for (int device : slot->devices) {
    auto store = [self = shared_from_this(), context, item, slot, move, device,
                  type = array->type(device)](absl::StatusOr<Bytes> bytes) {
      absl::StatusOr<Bytes> stored = bytes;
      if (bytes.ok()) {
        stored = self->StoreShard(item->session, *slot, device, type,
                                  [&](uint8_t* to) { std::memcpy(to, bytes->data, bytes->size); });
      }
      {
        std::lock_guard lock(move->mutex);
        move->error.Update(stored.status());
        if (stored.ok()) {
          move->blocks.emplace_back(device, *stored);
          move->shards.push_back({device, type, *std::move(stored)});
        }
        if (--move->left > 0) return;
      }
      absl::StatusOr<ArrayRef> moved = ArrayRef();
      if (move->error.ok()) {
        moved = self->engine_.MakeArray(slot->memory_kind, std::move(move->shards));
      } else {
        moved = move->error;
      }
      self->FinishMove(context, item, slot, std::move(moved), std::move(move->blocks));
    };
    engine_.View(array, device, [self = shared_from_this(), store](absl::StatusOr<Bytes> bytes) {
      self->threads_.pool->Post([store, bytes = std::move(bytes)]() mutable { store(std::move(bytes)); });
    });
  }
}

void HostImpl::FinishMove(const ContextEntryRef& context, const ItemRef& item, const SlotRef& slot,
                          absl::StatusOr<ArrayRef> moved, std::vector<std::pair<int, Bytes>> blocks) {
  Turn turn(*this);
  Unuse(turn, *slot);
  --item->moves_left;
  if (!moved.ok()) {
    return FailItem(turn, *context, *item,
                    Annotate(moved.status(), absl::StrCat("an output of program '", item->program->spec.name,
                                                          "' in memory '", slot->memory_kind, "'")));
  }
  if (slot->state == Slot::State::kLaunched && *moved != nullptr) {
    turn.Drop(std::exchange(slot->ref, *std::move(moved)));
    slot->blocks = std::move(blocks);
    Settle(turn, *slot);
  } else {
    turn.Drop(*std::move(moved));
  }
  AnswerIfComplete(turn, *item);
}

}  // namespace parkway::engine
