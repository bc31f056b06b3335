// The hosts of a lease as the core sees them: who is up, which operation each has yet to end, what they were told to
// hold. It gives every operation its place in the one order (a sequence number) and sends it to all engines that take
// part, encoded once; it merges what they answer into one end for each operation, with a first cause when something
// failed, and it turns the loss of a host into errors of exactly what lay or ran there.
//
// Owned by the core; used inside tasks of its executor only.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/container/inlined_vector.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "base/executor.h"
#include "proto/parkway/engine.pb.h"
#include "runtime/buffers.h"
#include "runtime/core.h"
#include "runtime/fair_shares.h"
#include "runtime/topology.h"

namespace parkway::runtime {

using HostList = absl::InlinedVector<int, 4>;

enum class HostState {
  kAwaited,  // never there yet: work for it waits for ever
  kUp,
  kRestarting,  // down, and being started again: work waits for it, at most limits::kHostReturnWait
  kLost,        // work for it fails with DATA_LOSS
};

// What an operation leaves behind until all its engines have ended it.
struct InFlight {
  uint64_t session = 0;
  HostList hosts;       // that have not ended it
  HostList complained;  // of these: ended it with a complaint about a peer, whose cause is awaited
  HostList sources;     // whose bytes the others pull: when one is lost, that is the cause of their failures
  std::vector<BuffersRef> outputs;
  std::shared_ptr<const void> offered;  // bytes that the hosts may have to pull first
  uint64_t context = 0;
  bool launch = false;     // an error on one host is an error of every output
  absl::Time issued;       // of a launch
  absl::Status cancelled;  // how it ends when its engine is restarted to be rid of it
  std::string what;        // "program 'jit_step'", "copy of f32[8]", for messages
  std::string fingerprint;
  // Of a launch that can be given to a new engine, when this one is restarted for another's sake: what it was sent,
  // what it works on, and how its executable is loaded again (false: it is gone).
  fabric::Frame again;
  std::vector<std::weak_ptr<Buffers>> inputs;
  std::function<bool()> reload;
  absl::Duration ran = absl::InfiniteDuration();  // a launch, on the host that ended it last, as far as that says
  FairShares::RunningRef running;                 // of a launch: its share of the devices
  absl::Status error;                             // first cause
  std::shared_ptr<void> credit;                   // the session's, given back when this goes
  absl::AnyInvocable<void(const absl::Status&)> done;
};

// How a launch ends that somebody wanted to end.
absl::Status Cancelled(const std::string& what, const std::string& by);

class Engines : public BuffersOwner {
 public:
  struct Hooks {
    std::function<void()> changed;     // a host went up or down: queued work may go on
    std::function<void(int host)> up;  // before any queued work goes on
    std::function<void(int host, const absl::Status& cause)> lost;
    std::function<void(int host)> gone;  // it was to come back, and did not
    // Was this shard, which lay on a host that is to be started again, copied to its worker?
    std::function<bool(const Buffers& buffers, int device)> spared;
    std::function<void(int host, const ContextState&)> context_state;
    std::function<void(int host, const KeyValue&)> key_value;
    std::function<void(const InFlight&)> ended;
    std::function<void(const FairShares::RunningRef&, int host, absl::Duration ran)> launch_ended;
    std::function<void()> ends_known;  // after one or more of those, when no more are known for now
  };
  Engines(CoreOptions& options, Hooks hooks);
  ~Engines() override;

  // ---- Hosts
  void Up(int host, const EngineHello& hello, std::unique_ptr<EngineLink> link);
  void Down(int host, uint64_t incarnation, const absl::Status& cause, bool returns);
  // A paused host is up, but work for it waits as if it were being started again.
  HostState state(int host) const { return hosts_[host].paused ? HostState::kRestarting : hosts_[host].state; }
  void Pause(int host) { hosts_[host].paused = true; }
  uint64_t incarnation(int host) const { return hosts_[host].incarnation; }
  const EngineHello& hello(int host) const { return hosts_[host].hello; }
  // Are that array's shards there kept by the host's worker, so that they outlive its engine?
  bool Outlives(const Buffers& buffers, int host) const;
  // Why work for a lost host fails: DATA_LOSS naming slice, host and reason.
  absl::Status LossOf(int host) const;
  // The hosts of some devices, each once, ascending.
  HostList HostsOf(absl::Span<const int32_t> devices) const;

  // ---- Buffers
  BuffersRef NewBuffers(const HolderRef& holder, const ArraySpec& spec, int64_t shard_bytes, MadeBy made_by);
  // The launch that is about to be issued takes its bytes.
  void Donate(Buffers& buffers);
  void OnFreed(Buffers& buffers, absl::Span<const int> devices) override;
  void OnDestroyed(Buffers& buffers) override;
  void ForEachBuffers(const std::function<void(Buffers&)>& visit) const;

  // ---- Device memory
  // What an operation wants of it.
  struct Demand {
    std::string what;  // "program 'jit_step'", for messages
    std::vector<BuffersRef> outputs;
    std::vector<BuffersRef> donated;
    absl::Span<const int> devices;
    int64_t temporary = 0;  // bytes on each of the devices while it runs
  };
  bool limited() const { return limited_; }  // has any host a limit?
  // RESOURCE_EXHAUSTED when a host has not so much; says who holds how much there.
  absl::Status CheckMemory(const Holder& holder, const Demand& demand) const;

  // ---- Operations. All hosts named must be up.
  // One operation for all of its hosts.
  uint64_t Issue(Op op, InFlight entry);
  // One for each host: `ops[i]` goes to `entry.hosts[i]`, all under one sequence number.
  uint64_t IssueEach(std::vector<Op> ops, InFlight entry);
  // Operations that nobody waits for, and control messages.
  void Tell(absl::Span<const int> hosts, Op op);
  void TellControl(int host, Op op);
  using ReadDone = absl::AnyInvocable<void(absl::StatusOr<Bytes>)>;
  void Read(uint64_t session, const Buffers& buffers, int device, ReadDone done);
  // Has the engine copy the shard to its worker, for the engine after it; past whatever it is busy with.
  void Keep(const Buffers& buffers, int device, absl::AnyInvocable<void(const absl::Status&)> done);

  void OnEvents(int host, uint64_t incarnation, const Events& events);

  // In flight on that host, oldest first.
  std::vector<const InFlight*> InFlightOn(int host) const;
  struct Launches {
    uint64_t count = 0;
    const InFlight* oldest = nullptr;
  };
  Launches LaunchesOf(uint64_t session) const;
  // What that session has in flight is cancelled, for that reason.
  void Cancel(uint64_t session, const std::string& by);
  // Where cancelled launches of that session are still in flight.
  HostList HostsWithCancelled(uint64_t session) const;
  // Nobody hears any more how its operations and reads end.
  void DropCallbacks(uint64_t session);

  // Programs that crashed an engine, by fingerprint: how often.
  int crashes(const std::string& fingerprint) const;

 private:
  struct HostEntry {
    HostState state = HostState::kAwaited;
    uint64_t incarnation = 0;
    EngineHello hello;
    std::unique_ptr<EngineLink> link;
    bool paused = false;
    absl::Status cause;
    TimerId timer = 0;
    int64_t bytes = 0;
  };
  struct PendingRead {
    uint64_t session = 0;
    int host = 0;
    ReadDone done;
    std::weak_ptr<const Buffers> buffers;
    int device = 0;
    fabric::Frame again;  // null: it can't be read from a new engine
  };

  void End(uint64_t seq, int host, const absl::Status& status, const Failure* failure);
  void FailOutputs(const InFlight& entry, int host, const absl::Status& status, const Failure* failure);
  void HoldForCause(uint64_t seq, int host, absl::Status complaint, const Failure& failure);
  void Finish(InFlight entry);
  void FailHost(int host, const absl::Status& cause, bool returns);
  // Of the arrays whose shards on that host outlived its engine, or were copied to its worker before it went, those
  // not in `kept` are lost; what nobody refers to any more is freed.
  void JudgeKept(int host, absl::Span<const ShardRef> kept, const absl::Status& loss);
  void BlameForCrash(int host, const absl::Status& cause);
  void EndCancelled(int host);
  // `keep`: on the control lane, not from the next engine, and whether or not the session lives on.
  void StartRead(uint64_t session, const Buffers& buffers, int device, bool keep, ReadDone done);
  void OnRead(int host, const ReadResult& result);
  void MarkMade(const InFlight& entry);
  void Discharge(Buffers& buffers, int device);
  void DischargeAll(Buffers& buffers);
  void AddBytes(Buffers& buffers, int device, int64_t bytes);
  void LoseHost(int host);
  // A host that goes for a program's sake: of what runs or is read there, what the new engine can do again stays in
  // flight. Returns the arrays that will be made again.
  absl::flat_hash_set<uint64_t> KeepForNextEngine(int host);
  bool CanRunAgain(const InFlight& entry, int host, const absl::flat_hash_set<uint64_t>& made_again) const;
  void RunAgain(int host);
  // Ends what is in flight on a host that went, and the reads there, but for what is kept.
  void EndAllOn(int host, const absl::Status& loss);
  std::string HoldersOn(int host, const Holder& asking) const;
  void FlushDeletes();
  void ScheduleFlush(int64_t bytes);

  CoreOptions& options_;
  const Topology& topology_;
  Hooks hooks_;
  std::vector<HostEntry> hosts_;
  uint64_t next_seq_ = 1;
  uint64_t next_id_ = 1;
  absl::btree_map<uint64_t, InFlight> in_flight_;
  absl::flat_hash_map<uint64_t, Buffers*> buffers_;
  absl::flat_hash_map<uint64_t, PendingRead> reads_;
  absl::flat_hash_map<std::string, int> crashes_;
  absl::flat_hash_set<uint64_t> kept_;  // operations in flight that wait for their host's next engine
  absl::flat_hash_set<uint64_t> kept_reads_;
  std::deque<std::string> crashed_;  // its keys, oldest first
  bool limited_ = false;
  // Deletes that wait to be sent, by host. Few and small ones wait for more: a message of their own would wake an
  // engine for nothing.
  absl::flat_hash_map<int, Delete> deletes_;
  int64_t delete_bytes_ = 0;
  int64_t delete_count_ = 0;
  bool flush_scheduled_ = false;  // after the running task
  bool flush_timer_ = false;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace parkway::runtime
