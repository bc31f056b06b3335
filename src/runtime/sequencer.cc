#include "runtime/sequencer.h"

#include <utility>

#include "base/limits.h"

namespace parkway::runtime {

Sequencer::Verdict Sequencer::Judge(Operation& operation, uint64_t* context, absl::Status* why) {
  if (operation.inputs_awaited > 0) return Verdict::kWait;
  bool wait = false;
  for (int host : operation.hosts) {
    switch (engines_->state(host)) {
      case HostState::kUp:
        break;
      case HostState::kLost:
        *why = engines_->LossOf(host);
        return Verdict::kFail;
      case HostState::kAwaited:
      case HostState::kRestarting:
        wait = true;
    }
  }
  if (wait) return Verdict::kWait;
  *context = 0;
  if (!operation.context) return Verdict::kIssue;
  absl::StatusOr<const Contexts::Context*> found = contexts_->Get(operation.hosts);
  if (!found.ok()) {
    *why = found.status();
    return Verdict::kFail;
  }
  *context = (*found)->id;
  if (operation.awaited_context != *context) {
    operation.awaited_context = *context;
    if (++operation.contexts_awaited > limits::kContextAttempts) {
      *why = contexts_->last_failure();
      return Verdict::kFail;
    }
  }
  return (*found)->state == Contexts::State::kOpen ? Verdict::kIssue : Verdict::kWait;
}

void Sequencer::Submit(uint64_t session, OperationRef operation) {
  auto it = queues_.find(session);
  if (it == queues_.end()) return;
  it->second.push_back(std::move(operation));
  if (it->second.size() == 1) Pump(session);
}

void Sequencer::InputArrived(uint64_t session, const OperationRef& operation) {
  --operation->inputs_awaited;
  auto it = queues_.find(session);
  if (it != queues_.end() && !it->second.empty() && it->second.front() == operation) Pump(session);
}

void Sequencer::Pump(uint64_t session) {
  while (true) {
    auto it = queues_.find(session);  // issuing may close it
    if (it == queues_.end() || it->second.empty()) return;
    OperationRef head = it->second.front();
    uint64_t context = 0;
    absl::Status why;
    Verdict verdict = Judge(*head, &context, &why);
    if (verdict == Verdict::kWait) return;
    it->second.pop_front();
    if (verdict == Verdict::kIssue) {
      head->issue(context, std::move(head->credit));
    } else {
      head->fail(why);
      head->credit.reset();
    }
  }
}

void Sequencer::PumpAll() {
  // Judging a head may open a context, and failing one may change another: one loop at a time, until nothing moves.
  pump_again_ = true;
  if (pumping_all_) return;
  pumping_all_ = true;
  while (pump_again_) {
    pump_again_ = false;
    std::vector<uint64_t> sessions;
    for (const auto& [session, queue] : queues_) {
      if (!queue.empty()) sessions.push_back(session);
    }
    for (uint64_t session : sessions) Pump(session);
  }
  pumping_all_ = false;
}

}  // namespace parkway::runtime
