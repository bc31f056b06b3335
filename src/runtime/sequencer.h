// One order for everything. Each session has a queue; the head of a queue goes to the engines as soon as what it waits
// for is there (its hosts, the client's bytes, a context), and nothing of that session overtakes it. Sessions don't
// wait for each other: the order between them is that in which their heads became ready.
//
// Owned by the core; used inside tasks of its executor only.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "runtime/contexts.h"
#include "runtime/engines.h"

namespace parkway::runtime {

struct Operation {
  HostList hosts;        // whose engines take part
  bool context = false;  // they must share an open context
  int inputs_awaited = 0;
  uint64_t awaited_context = 0;  // the last one that it waited for
  int contexts_awaited = 0;
  std::shared_ptr<void> credit;  // what it takes of its session's
  // Sends it. `context`: id of the open context, or 0. `credit` goes on to what is then in flight.
  absl::AnyInvocable<void(uint64_t context, std::shared_ptr<void> credit)> issue;
  // It can't be done: leaves the error in what it would have made.
  absl::AnyInvocable<void(const absl::Status&)> fail;
};
using OperationRef = std::shared_ptr<Operation>;

class Sequencer {
 public:
  Sequencer(Engines* engines, Contexts* contexts) : engines_(engines), contexts_(contexts) {}

  void Open(uint64_t session) { queues_[session]; }
  // Drops what is queued, without calling anything.
  void Close(uint64_t session) { queues_.erase(session); }
  // Issues the operation now, or queues it.
  void Submit(uint64_t session, OperationRef operation);
  // An input of an operation has come.
  void InputArrived(uint64_t session, const OperationRef& operation);
  // A host or a context changed: looks at every queue.
  void PumpAll();

 private:
  enum class Verdict { kIssue, kWait, kFail };
  Verdict Judge(Operation& operation, uint64_t* context, absl::Status* why);
  void Pump(uint64_t session);

  Engines* engines_;
  Contexts* contexts_;
  absl::btree_map<uint64_t, std::deque<OperationRef>> queues_;
  bool pumping_all_ = false;
  bool pump_again_ = false;
};

}  // namespace parkway::runtime
