// The inside of EngineHost, shared by host.cc (tables), host_arena.cc, host_context.cc (executables, contexts),
// host_launch.cc and host_data.cc (bytes in and out). One mutex guards all state. Nothing of the engine's is called or
// dropped while it is held: an engine may need a lock of its own for either, and calls back from threads that hold it.
// Turn sees to that.
#pragma once

#include <chrono>
#include <deque>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/container/inlined_vector.h"
#include "engine/host.h"
#include "engine/host_events.h"
#include "engine/host_wire.h"

namespace parkway::engine {

// The local shards of what one operation made. Ops hold it by reference, so that a Delete only takes it from the table.
struct Slot {
  enum class State { kPromised, kLaunched, kFailed };
  State state = State::kPromised;
  uint64_t array = 0;
  std::vector<int> devices;  // local, that were promised
  std::string memory_kind;   // never empty
  uint64_t origin = 0;       // the context whose launch makes it; 0: local

  ArrayRef ref;                                      // kLaunched; null when every shard is in `faults`
  std::vector<std::pair<int, absl::Status>> faults;  // shards that are missing from `ref`
  std::vector<std::pair<int, Bytes>> blocks;         // of the arena, by device: they stay as long as this does
  absl::Status error;                                // kFailed
  bool settled = false;                              // the bytes are there, or will never be
  int uses = 0;                                      // operations that have yet to touch `ref`
  std::vector<Task> on_launched, on_settled, on_unused;
};
using SlotRef = std::shared_ptr<Slot>;

// Serialized bytes by content hash, perhaps still on their way.
struct Program {
  std::string hash;
  std::optional<absl::StatusOr<Bytes>> bytes;
  std::vector<Transfer> others;  // from which they can be had when the first one is dropped: another session's
  std::vector<Task> waiters;
};
using ProgramRef = std::shared_ptr<Program>;

struct LoadedProgram {
  enum class State { kLoading, kLoaded, kFailed };
  State state = State::kLoading;
  uint64_t id = 0;
  uint64_t context = 0;
  LoadSpec spec;                   // without the bytes once loaded
  std::vector<int> local_devices;  // in the executable's order
  std::vector<int> positions;      // of the local devices among all of the executable's
  ExecutableRef ref;
  absl::Status error;
  std::vector<Task> waiters;
  // How long launches took to return: inline ones are earned by a row of short ones, dearer after each long one.
  int quick_in_row = 0, quick_needed = 2;
  bool quick() const { return quick_in_row >= quick_needed; }
};
using LoadedRef = std::shared_ptr<LoadedProgram>;

struct Piece {
  SlotRef slot;
  int device = 0;
};
struct Argument {
  bool whole = true;  // pieces[0].slot is the array as it is
  absl::InlinedVector<Piece, 1> pieces;
  absl::Status error;  // known when it was read
};

struct RideRead {
  int output = 0;
  int device = 0;  // local
  uint64_t read = 0;
};

struct LaunchItem {
  uint64_t seq = 0;
  uint64_t context = 0;
  uint64_t session = 0;
  LoadedRef program;
  std::vector<Argument> arguments;
  std::vector<int> donated;
  std::vector<SlotRef> outputs;
  std::vector<RideRead> reads;
  std::vector<SlotRef> inputs;                      // of all pieces; each counts one use
  std::vector<std::pair<SlotRef, int>> sole_users;  // donated: how many of its uses are this launch's

  size_t checked = 0;                           // inputs known to be there
  size_t settled = 0;                           // inputs known to be settled
  bool waiting = false;                         // a waiter will kick the queue
  bool launched = false;                        // Engine::Launch returned
  std::chrono::steady_clock::time_point begun;  // just before it was called
  bool ended = false;                           // the engine said that it is over
  bool answered = false;                        // the proxy was told how it ended
  bool reads_started = false;
  std::optional<absl::Status> early;  // ended before Launch returned
  std::vector<SlotRef> to_move;       // outputs that belong in the arena; each counts one use
  int moves_left = 0;                 // outputs that are on their way to the arena
  int reads_left = 0;                 // small reads that ride in the completion
  std::vector<ReadResult> results;    // of those that are there
};
using ItemRef = std::shared_ptr<LaunchItem>;

struct ContextEntry {
  enum class State { kOpening, kOpen, kClosed };
  State state = State::kOpening;
  uint64_t id = 0;
  bool shared = false;  // other hosts are members
  ContextRef ref;
  absl::Status cause;                                     // kClosed; or why no launch may follow the failed one
  std::vector<Task> waiters;                              // for the end of opening
  std::vector<std::pair<std::string, std::string>> keys;  // that came while opening

  std::deque<ItemRef> queue;
  absl::flat_hash_set<ItemRef> unfinished;  // queued or in flight
  bool running = false;                     // a thread is taking from the queue
  std::unique_ptr<Runner> launcher;         // made when first needed
};
using ContextEntryRef = std::shared_ptr<ContextEntry>;

// Bytes that become shards: sources, and the pieces of them that each shard is made of.
struct Source {
  Type type;
  std::vector<int64_t> byte_strides;  // empty: dense
  Bytes bytes;
  absl::Status error;
};
struct BuildPiece {
  int source = 0;
  Box from, to;
};
struct BuildShard {
  int device = 0;
  Type type;
  std::vector<BuildPiece> pieces;
  Piece alias;  // a shard shared as it is, when its slot isn't null
  absl::Status error;
};
struct Build {
  uint64_t seq = 0;
  uint64_t session = 0;
  SlotRef out;
  std::vector<Source> sources;
  std::vector<BuildShard> shards;
  std::vector<std::pair<int, Bytes>> blocks;  // of the arena
  int left = 1;                               // sources and aliases that aren't there yet, and the one who starts
};
using BuildRef = std::shared_ptr<Build>;

class Turn;

class HostImpl : public std::enable_shared_from_this<HostImpl> {
 public:
  HostImpl(HostOptions options, Engine& engine, fabric::Bulk& bulk, HostThreads threads);

  EngineHello Hello() const;
  absl::Status Start(const ProxyHello& proxy, std::function<void(fabric::Frame)> send);
  void Stop();
  HostStats Stats() const;
  void Handle(Op& op);
  void HandleControl(Op& op);

 private:
  friend class Turn;

  // ---- Tables (host.cc). What takes a Turn is called with the lock held: the Turn has it.
  absl::StatusOr<int> LocalDevice(int lease_device) const;
  int LeaseDevice(int local) const { return proxy_.devices(local); }
  absl::StatusOr<std::string> MemoryKind(const std::string& kind) const;
  absl::StatusOr<SlotRef> Find(Turn& turn, uint64_t array);
  absl::StatusOr<Piece> FindShard(Turn& turn, const ShardRef& ref);
  // A promised slot in the table; INVALID_ARGUMENT when the id is in use.
  absl::StatusOr<SlotRef> Promise(Turn& turn, uint64_t array, std::vector<int> devices, std::string memory_kind);
  void SetLaunched(Turn& turn, Slot& slot, ArrayRef ref, std::vector<std::pair<int, absl::Status>> faults = {});
  void SetFailed(Turn& turn, Slot& slot, const absl::Status& error);
  void Settle(Turn& turn, Slot& slot);
  void Unuse(Turn& turn, Slot& slot);
  // The array and no error when the shard can be used.
  absl::StatusOr<ArrayRef> Shard(Turn& turn, const Slot& slot, int device) const;
  // Runs `then` without the lock as soon as the slot isn't promised any more.
  void WhenLaunched(Turn& turn, Slot& slot, Task then);
  void RemoveArray(Turn& turn, uint64_t array);
  void RemoveShard(Turn& turn, const ShardRef& ref);
  void HandleDelete(const Op& op);

  // ---- The arena (host_arena.cc)
  bool InArena(const std::string& memory_kind) const;
  std::vector<std::string> ArenaKinds() const;
  // The shards, by array, that an earlier engine left, as arrays in the table; what can't be taken over is freed.
  std::vector<ShardRef> TakeOver();
  // A shard of another kind may come back too (KeepShard); it is copied out of its block.
  absl::StatusOr<ArrayRef> TakeOverArray(std::vector<std::pair<ArenaShard, Bytes>> shards,
                                         std::vector<std::pair<int, Bytes>>& blocks) const;
  absl::StatusOr<Bytes> StoreShard(uint64_t session, const Slot& slot, int device, const Type& type,
                                   absl::FunctionRef<void(uint8_t* to)> write, bool keep = false) const;
  // Copies a shard of device memory there, for the next engine.
  absl::Status KeepShard(uint64_t session, const Piece& piece, const Bytes& bytes);
  // Starts moving the outputs of a launch that has ended which belong there. They settle when they have arrived.
  void MoveOutputs(Turn& turn, const ContextEntryRef& context, const ItemRef& item);
  void MoveOutput(const ContextEntryRef& context, const ItemRef& item, const SlotRef& slot);
  void FinishMove(const ContextEntryRef& context, const ItemRef& item, const SlotRef& slot,
                  absl::StatusOr<ArrayRef> moved, std::vector<std::pair<int, Bytes>> blocks);

  // ---- Executables and contexts (host_context.cc)
  void HandleLoad(Op& op);
  absl::StatusOr<LoadedRef> MakeLoaded(LoadExecutable& load, uint64_t context) const;
  // The program's bytes, here or on their way; `fetch` when the caller has to ask for them.
  absl::StatusOr<ProgramRef> FindProgram(Turn& turn, LoadExecutable& load, bool& fetch);
  void FetchProgram(const ProgramRef& program, const Transfer& transfer);
  void OnProgram(const ProgramRef& program, absl::StatusOr<Bytes> bytes);
  void KeepProgram(Turn& turn, const ProgramRef& program);
  void LoadWhenReady(Turn& turn, const LoadedRef& loaded, const ProgramRef& program, const ContextEntryRef& context);
  void FinishLoad(Turn& turn, LoadedProgram& loaded, absl::StatusOr<ExecutableRef> result);
  void HandleUnload(const Op& op);
  void HandleOpenContext(const Op& op);
  absl::StatusOr<ContextSpec> MakeContextSpec(const OpenContext& open);
  void FinishOpen(const ContextEntryRef& context, absl::StatusOr<ContextRef> result);
  void HandleCloseContext(const Op& op);
  // Takes the context from the table and fails all that is in it.
  void EndContext(Turn& turn, const ContextEntryRef& context, const absl::Status& cause);
  void DropClient(const ContextEntryRef& context, const ContextRef& client);
  void HandleKeyValue(const Op& op);
  void TellContext(Turn& turn, uint64_t context, bool open, const absl::Status& status);
  absl::StatusOr<ContextEntryRef> FindContext(Turn& turn, uint64_t id);

  // ---- Launches (host_launch.cc)
  void HandleLaunch(const Op& op);
  absl::Status BindLaunch(Turn& turn, const Op& op, const ItemRef& item);
  absl::Status BindReads(const Launch& launch, LaunchItem& item) const;
  absl::Status PromiseOutputs(Turn& turn, const Launch& launch, LaunchItem& item);
  Argument BindArgument(Turn& turn, const Operand& operand, const LoadedProgram& program);
  void TakeDonated(Turn& turn, const Launch& launch, LaunchItem& item);
  void Enqueue(Turn& turn, const ContextEntryRef& context, const ItemRef& item);
  bool MayRunInline(const ContextEntry& context, const LaunchItem& item) const;
  bool ReadyToLaunch(Turn& turn, const ContextEntryRef& context, LaunchItem& item);
  void Kick(const ContextEntryRef& context);
  void PostDrain(Turn& turn, const ContextEntryRef& context);
  void Drain(const ContextEntryRef& context);
  void RunLaunch(const ContextEntryRef& context, const ItemRef& item);
  bool BeginLaunch(const ContextEntryRef& context, const ItemRef& item, std::vector<absl::StatusOr<ArrayRef>>& pieces,
                   ExecutableRef& executable);
  // The argument as the engine wants it, out of its pieces.
  absl::StatusOr<ArrayRef> Resolve(const LaunchItem& item, int index,
                                   absl::Span<const absl::StatusOr<ArrayRef>> pieces);
  void FinishLaunchCall(const ContextEntryRef& context, const ItemRef& item, absl::StatusOr<LaunchResult> result,
                        const absl::Status& lost_input, absl::Duration took);
  void OnLaunchEnd(const ContextEntryRef& context, const ItemRef& item, const absl::Status& status);
  void EndLaunch(Turn& turn, const ContextEntryRef& context, const ItemRef& item, const absl::Status& status);
  void FailItem(Turn& turn, ContextEntry& context, LaunchItem& item, const absl::Status& status);
  void Finish(ContextEntry& context, const ItemRef& item);
  void AnswerIfComplete(Turn& turn, LaunchItem& item);
  void StartRideReads(const ItemRef& item);
  void HandleAbort(const Op& op);

  // ---- Bytes in and out (host_data.cc)
  void HandlePut(Op& op);
  absl::Status PlanPut(Put& put, Build& build) const;
  void HandleGather(const Op& op);
  absl::Status PlanGather(Turn& turn, const Gather& gather, Build& build, std::vector<std::pair<int, Piece>>& views,
                          std::vector<std::pair<int, const Transfer*>>& fetches);
  bool StartBuild(Turn& turn, uint64_t array, const std::string& memory_kind, const BuildRef& build,
                  const absl::Status& plan);
  void FetchSource(const BuildRef& build, int source, const Transfer& transfer);
  void ViewSource(const BuildRef& build, int source, const Piece& piece);
  void SourceReady(const BuildRef& build, int source, absl::StatusOr<Bytes> bytes);
  void OneLeft(Turn& turn, const BuildRef& build);
  void FinishBuild(const BuildRef& build);
  absl::StatusOr<Bytes> MakeShard(const Build& build, const BuildShard& shard) const;
  absl::StatusOr<ArrayRef> JoinShards(const Build& build, const ArrayRef& made, std::vector<ShardOf> aliases);
  void EndBuild(const BuildRef& build, absl::StatusOr<ArrayRef> array);

  // Asks the engine for a shard's bytes; an error of the slot's comes before one of the engine's.
  void ViewShard(const Piece& piece, absl::AnyInvocable<void(absl::StatusOr<Bytes>)> done);
  void HandleExport(const Op& op);
  absl::StatusOr<Bytes> CopyForExport(const Piece& piece, const Export& message, const Bytes& bytes);
  void FinishExport(uint64_t seq, uint64_t transfer, absl::StatusOr<Bytes> bytes);
  void HandleRelease(const Op& op);
  void HandleRead(const Op& op);
  void AnswerRead(uint64_t read, absl::StatusOr<Bytes> bytes);
  void AnswerKeep(uint64_t session, uint64_t read, const Piece& piece, absl::StatusOr<Bytes> bytes);
  void OfferRead(uint64_t read, const Bytes& bytes);

  const HostOptions options_;
  Engine& engine_;
  fabric::Bulk& bulk_;
  const HostThreads threads_;
  const std::shared_ptr<EventSender> events_;

  mutable std::mutex mutex_;
  bool started_ = false, stopped_ = false;
  ProxyHello proxy_;                        // written by Start alone
  absl::flat_hash_map<int, int> local_of_;  // lease device id -> local device; written by Start alone
  absl::flat_hash_map<uint64_t, SlotRef> arrays_;
  absl::flat_hash_map<uint64_t, LoadedRef> loaded_;
  absl::flat_hash_map<uint64_t, ContextEntryRef> contexts_;
  std::deque<std::pair<uint64_t, absl::Status>> closed_;  // the latest contexts that ended, and why
  absl::flat_hash_map<uint64_t, std::vector<std::pair<std::string, std::string>>> early_keys_;
  size_t held_keys_ = 0;            // in early_keys_ and in contexts that are opening
  std::list<ProgramRef> programs_;  // most recently used first
  int64_t program_bytes_ = 0;
  absl::flat_hash_set<uint64_t> exports_;  // transfers that a Release has not ended
  std::vector<Bytes> kept_;                // what KeepShard has copied, until the process ends
  size_t unfinished_ = 0;
  uint64_t launches_inline_ = 0, launches_queued_ = 0;
};

// A stretch of work on the host's state: takes the lock, and gives it back when destroyed; only then are the events
// sent, the tasks run and the dropped things destroyed.
class Turn {
 public:
  explicit Turn(HostImpl& host) : host_(host), lock_(host.mutex_) {}
  ~Turn();
  Turn(const Turn&) = delete;

  void Then(Task task) { tasks_.push_back(std::move(task)); }
  void Then(std::vector<Task>& tasks) {
    for (Task& task : tasks) tasks_.push_back(std::move(task));
    tasks.clear();
  }
  void Drop(std::shared_ptr<const void> thing) {
    if (thing != nullptr) dropped_.push_back(std::move(thing));
  }
  Events& events() {
    if (!events_.has_value()) events_.emplace();
    return *events_;
  }
  void Done(uint64_t seq) { events().add_done(seq); }
  void DoneLazily(uint64_t seq) { lazy_done_.push_back(seq); }
  void Fail(uint64_t seq, const absl::Status& status, bool peer = false);

 private:
  HostImpl& host_;
  std::unique_lock<std::mutex> lock_;
  std::optional<Events> events_;
  absl::InlinedVector<uint64_t, 2> lazy_done_;
  std::vector<Task> tasks_;
  std::vector<std::shared_ptr<const void>> dropped_;
};

}  // namespace parkway::engine
