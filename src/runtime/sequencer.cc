#include "runtime/sequencer.h"

#include <algorithm>
#include <utility>

#include "absl/container/flat_hash_set.h"
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

void Sequencer::Close(uint64_t session) {
  queues_.erase(session);
  absl::erase_if(waiting_, [session](const auto& head) { return head.first.second == session; });
  shares_.Close(session);
  // Not from here: whoever closes a session is in the middle of something.
  executor_->Post([this, alive = alive_] {
    if (*alive) GiveTurns();
  });
}

void Sequencer::Cancel(uint64_t session, const std::string& by) {
  auto it = queues_.find(session);
  if (it == queues_.end()) return;
  std::vector<OperationRef> launches;
  std::deque<OperationRef> others;
  for (OperationRef& operation : it->second) {
    if (operation->launch == nullptr) {
      others.push_back(std::move(operation));
      continue;
    }
    if (operation->awaits_turn) shares_.StopsWaiting(session, *operation->launch);
    operation->awaits_turn = false;
    launches.push_back(std::move(operation));
  }
  it->second = std::move(others);
  absl::erase_if(waiting_, [session](const auto& head) { return head.first.second == session; });
  for (OperationRef& launch : launches) {
    launch->fail(Cancelled(launch->launch->what, by));
    launch->credit.reset();
  }
  Pump(session);
  GiveTurns();
}

uint64_t Sequencer::QueuedLaunches(uint64_t session) const {
  const auto it = queues_.find(session);
  if (it == queues_.end()) return 0;
  return std::count_if(it->second.begin(), it->second.end(),
                       [](const OperationRef& operation) { return operation->launch != nullptr; });
}

void Sequencer::Submit(uint64_t session, OperationRef operation) {
  auto it = queues_.find(session);
  if (it == queues_.end()) return;
  it->second.push_back(std::move(operation));
  if (it->second.size() > 1) return;
  Pump(session);
  GiveTurns();
}

void Sequencer::InputArrived(uint64_t session, const OperationRef& operation) {
  --operation->inputs_awaited;
  auto it = queues_.find(session);
  if (it == queues_.end() || it->second.empty() || it->second.front() != operation) return;
  Pump(session);
  GiveTurns();
}

void Sequencer::Pump(uint64_t session) {
  while (true) {
    auto it = queues_.find(session);  // issuing may close it
    if (it == queues_.end() || it->second.empty()) return;
    OperationRef head = it->second.front();
    if (head->awaits_turn) return;
    uint64_t context = 0;
    absl::Status why;
    Verdict verdict = Judge(*head, &context, &why);
    if (verdict == Verdict::kWait) return;
    if (verdict == Verdict::kIssue && head->launch != nullptr) {
      head->awaits_turn = true;
      waiting_.emplace(shares_.RankOf(session, *head->launch, executor_->Now()), std::move(head));
      return;
    }
    it->second.pop_front();
    if (verdict == Verdict::kIssue) {
      head->issue(context, Issued{std::move(head->credit), nullptr});
    } else {
      head->fail(why);
      head->credit.reset();
    }
  }
}

void Sequencer::TakeTurn(const FairShares::Rank& rank, const OperationRef& head) {
  const uint64_t session = rank.second;
  head->awaits_turn = false;
  shares_.StopsWaiting(session, *head->launch);
  uint64_t context = 0;
  absl::Status why;
  // Its hosts may have gone while it waited; whatever but a launch can be done with it is Pump's.
  if (Judge(*head, &context, &why) == Verdict::kIssue) {
    queues_.at(session).pop_front();
    FairShares::RunningRef running = shares_.Begin(rank, std::move(head->launch), executor_->Now());
    head->issue(context, Issued{std::move(head->credit), std::move(running)});
  }
  Pump(session);
}

void Sequencer::GiveTurns() {
  // Sending one may bring others: one loop at a time, until nothing moves.
  give_again_ = true;
  if (giving_turns_) return;
  giving_turns_ = true;
  while (give_again_) {
    give_again_ = false;
    absl::flat_hash_set<int> kept;  // devices, for those that come first and have no room yet
    for (auto it = waiting_.begin(); it != waiting_.end();) {
      const FairShares::Rank rank = it->first;
      const OperationRef head = it->second;
      const std::vector<int>& devices = head->launch->devices;
      auto taken = [&](int device) { return kept.contains(device); };
      if ((!kept.empty() && std::any_of(devices.begin(), devices.end(), taken)) ||
          !shares_.HasRoom(rank.second, *head->launch, executor_->Now())) {
        kept.insert(devices.begin(), devices.end());
        ++it;
        continue;
      }
      waiting_.erase(it);
      TakeTurn(rank, head);
      it = waiting_.lower_bound(rank);  // the next of that session comes no earlier
    }
  }
  giving_turns_ = false;
  if (!waiting_.empty()) LookAgainLater();
}

void Sequencer::LookAgainLater() {
  if (will_look_) return;
  will_look_ = true;
  executor_->After(limits::kShareWait, [this, alive = alive_] {
    if (!*alive) return;
    will_look_ = false;
    GiveTurns();
  });
}

void Sequencer::EndsKnown() {
  shares_.Charge(executor_->Now());
  GiveTurns();
}

void Sequencer::PumpAll() {
  // Judging a head may open a context, and failing one may change another: one loop at a time, until nothing moves.
  pump_again_ = true;
  if (pumping_all_) return;
  pumping_all_ = true;
  while (pump_again_) {
    pump_again_ = false;
    for (auto& [rank, head] : waiting_) {
      head->awaits_turn = false;
      shares_.StopsWaiting(rank.second, *head->launch);
    }
    waiting_.clear();
    std::vector<uint64_t> sessions;
    for (const auto& [session, queue] : queues_) {
      if (!queue.empty()) sessions.push_back(session);
    }
    for (uint64_t session : sessions) Pump(session);
  }
  pumping_all_ = false;
  GiveTurns();
}

}  // namespace parkway::runtime
