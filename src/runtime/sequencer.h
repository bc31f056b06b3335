// One order for everything. Each session has a queue; the head of a queue goes to the engines as soon as what it waits
// for is there (its hosts, the client's bytes, a context), and nothing of that session overtakes it. Sessions don't
// wait for each other: the order between them is that in which their heads became ready, but that launches take turns
// on the devices (fair_shares.h).
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
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "base/executor.h"
#include "runtime/contexts.h"
#include "runtime/engines.h"
#include "runtime/fair_shares.h"

namespace parkway::runtime {

// What an operation holds from when it is sent until it has ended.
struct Issued {
  std::shared_ptr<void> credit;
  FairShares::RunningRef running;  // of a launch
};

struct Operation {
  HostList hosts;        // whose engines take part
  bool context = false;  // they must share an open context
  int inputs_awaited = 0;
  uint64_t awaited_context = 0;  // the last one that it waited for
  int contexts_awaited = 0;
  bool awaits_turn = false;
  std::shared_ptr<void> credit;  // what it takes of its session's
  LaunchWorkRef launch;          // null for everything else
  // Sends it. `context`: id of the open context, or 0. What `issued` holds goes on to what is then in flight.
  absl::AnyInvocable<void(uint64_t context, Issued issued)> issue;
  // It can't be done: leaves the error in what it would have made.
  absl::AnyInvocable<void(const absl::Status&)> fail;
};
using OperationRef = std::shared_ptr<Operation>;

class Sequencer {
 public:
  Sequencer(Executor* executor, const Topology* topology, Engines* engines, Contexts* contexts)
      : executor_(executor), engines_(engines), contexts_(contexts), shares_(topology) {}
  ~Sequencer() { *alive_ = false; }

  void Open(uint64_t session) { queues_[session]; }
  // Drops what is queued, without calling anything.
  void Close(uint64_t session);
  // The launches that are queued fail with CANCELLED, naming `by`; what else is queued stays.
  void Cancel(uint64_t session, const std::string& by);
  uint64_t QueuedLaunches(uint64_t session) const;
  // Issues the operation now, or queues it.
  void Submit(uint64_t session, OperationRef operation);
  // An input of an operation has come.
  void InputArrived(uint64_t session, const OperationRef& operation);
  // A host or a context changed: looks at every queue.
  void PumpAll();
  // A launch has ended on a host; and no more ends are known for now.
  void LaunchEnded(const FairShares::RunningRef& running, int host, absl::Duration ran) {
    shares_.Ended(running, host, ran);
  }
  void EndsKnown();

 private:
  enum class Verdict { kIssue, kWait, kFail };
  Verdict Judge(Operation& operation, uint64_t* context, absl::Status* why);
  // Sends, or fails, what stands at the head of a queue, up to the first that has to wait. A launch that could go joins
  // those that wait for their turn.
  void Pump(uint64_t session);
  void TakeTurn(const FairShares::Rank& rank, const OperationRef& head);
  // Gives turns to the launches that wait for one, in their order.
  void GiveTurns();
  void LookAgainLater();

  Executor* executor_;
  Engines* engines_;
  Contexts* contexts_;
  FairShares shares_;
  absl::btree_map<uint64_t, std::deque<OperationRef>> queues_;
  absl::btree_map<FairShares::Rank, OperationRef> waiting_;  // heads of queues
  bool giving_turns_ = false;
  bool give_again_ = false;
  bool will_look_ = false;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
  bool pumping_all_ = false;
  bool pump_again_ = false;
};

}  // namespace parkway::runtime
