#include "runtime/core.h"

#include <utility>

#include "absl/container/btree_map.h"
#include "absl/strings/str_cat.h"
#include "base/limits.h"
#include "runtime/eviction.h"
#include "runtime/session_impl.h"

namespace parkway::runtime {

// ---- Sessions

SessionImpl::SessionImpl(CoreState* core, uint64_t id, std::string name, std::function<void(SessionImpl*)> closed)
    : core_(core), id_(id), name_(std::move(name)), closed_(std::move(closed)), holder_(std::make_shared<Holder>(id)) {
  core_->sequencer->Open(id_);
}

SessionImpl::~SessionImpl() {
  *alive_ = false;
  core_->sequencer->Close(id_);
  core_->engines->DropCallbacks(id_);
  for (uint64_t job : compiles_) core_->options.compiler->Cancel(job);
  // Nobody is left to be told; and who waits for an array that never came holds it.
  std::vector<std::vector<absl::AnyInvocable<void()>>> waiters;
  for (Buffers* buffers = holder_->first; buffers != nullptr; buffers = buffers->next()) {
    waiters.push_back(buffers->TakeWaiters());
  }
  waiters.clear();
  arrays_.clear();
  programs_.clear();
  closed_(this);
}

SessionImpl::Credit::Credit(SessionImpl* session, int64_t bytes)
    : session_(session), alive_(session->alive_), bytes_(bytes) {
  ++session_->operations_;
  session_->bytes_coming_ += bytes_;
}

SessionImpl::Credit::~Credit() {
  if (!*alive_) return;
  SessionImpl& session = *session_;
  --session.operations_;
  session.bytes_coming_ -= bytes_;
  if (session.on_credit_.empty() || session.operations_ > limits::kSessionOpsInFlight / 2) return;
  if (!session.HasCredit()) return;
  // Not from here: whoever lets go of a credit is in the middle of something.
  session.core_->options.executor->Post([resumes = std::exchange(session.on_credit_, {})]() mutable {
    for (auto& resume : resumes) resume();
  });
}

bool SessionImpl::HasCredit() const {
  return operations_ < limits::kSessionOpsInFlight && bytes_coming_ < limits::kSessionBytesInFlight;
}

void SessionImpl::OnCredit(absl::AnyInvocable<void()> resume) {
  if (HasCredit()) {
    resume();
  } else {
    on_credit_.push_back(std::move(resume));
  }
}

SessionStats SessionImpl::Stats() const {
  SessionStats stats{.arrays = arrays_.size(),
                     .executables = programs_.size() + reshards_.size(),
                     .bytes_held = holder_->bytes,
                     .session = id_,
                     .launches = core_->sequencer->QueuedLaunches(id_)};
  const Engines::Launches launches = core_->engines->LaunchesOf(id_);
  stats.launches += launches.count;
  if (launches.oldest != nullptr) {
    stats.program = launches.oldest->what;
    stats.running = core_->options.executor->Now() - launches.oldest->issued;
  }
  return stats;
}

// ---- The core

namespace {

class CoreImpl : public Core {
 public:
  explicit CoreImpl(CoreOptions options) {
    state_.options = std::move(options);
    Engines::Hooks hooks;
    hooks.changed = [this] {
      if (state_.sequencer) state_.sequencer->PumpAll();
    };
    hooks.up = [this](int host) { eviction_->OnEngineUp(host); };
    hooks.spared = [this](const Buffers& buffers, int device) { return eviction_->Spares(buffers, device); };
    hooks.gone = [this](int host) { eviction_->OnHostGone(host); };
    hooks.lost = [this](int host, const absl::Status& cause) { state_.contexts->OnHostLost(host, cause); };
    hooks.context_state = [this](int host, const ContextState& state) { state_.contexts->OnState(host, state); };
    hooks.key_value = [this](int host, const KeyValue& key) { state_.contexts->OnKeyValue(host, key); };
    hooks.ended = [this](const InFlight& entry) {
      if (entry.context != 0) state_.contexts->LaunchEnded(entry.context, entry.error);
    };
    hooks.launch_ended = [this](const FairShares::RunningRef& running, int host, absl::Duration ran) {
      state_.sequencer->LaunchEnded(running, host, ran);
    };
    hooks.ends_known = [this] { state_.sequencer->EndsKnown(); };
    state_.engines = std::make_unique<Engines>(state_.options, std::move(hooks));
    state_.contexts = std::make_unique<Contexts>(state_.engines.get(), &state_.options.topology, [this] {
      // Contexts change inside the sequencer's own decisions too; look at the queues once those are made.
      state_.options.executor->Post([this, alive = alive_] {
        if (*alive) state_.sequencer->PumpAll();
      });
    });
    state_.sequencer = std::make_unique<Sequencer>(state_.options.executor, &state_.options.topology,
                                                   state_.engines.get(), state_.contexts.get());
    eviction_ = std::make_unique<Eviction>(&state_);
  }
  ~CoreImpl() override { *alive_ = false; }

  const Topology& topology() const override { return state_.options.topology; }

  std::unique_ptr<Session> OpenSession(std::string name) override {
    uint64_t id = next_session_++;
    auto session = std::make_unique<SessionImpl>(&state_, id, std::move(name), [this](SessionImpl* closed) {
      sessions_.erase(closed->id());
      eviction_->OnSessionClosed(closed->id());
    });
    sessions_[id] = session.get();
    return session;
  }

  void OnEngineUp(int host, const EngineHello& hello, std::unique_ptr<EngineLink> link) override {
    state_.engines->Up(host, hello, std::move(link));
  }
  void OnEvents(int host, uint64_t incarnation, const Events& events) override {
    state_.engines->OnEvents(host, incarnation, events);
  }
  void OnEngineDown(int host, uint64_t incarnation, absl::Status cause, bool returns) override {
    state_.engines->Down(host, incarnation, cause, returns);
  }

  void CancelPrograms(uint64_t session, const std::string& by) override {
    std::vector<uint64_t> ids;
    for (const auto& [id, open] : sessions_) {
      if (session == 0 || session == id) ids.push_back(id);
    }
    for (uint64_t id : ids) {
      eviction_->Cancel(id, by);
      state_.sequencer->Cancel(id, by);
    }
  }

  CoreStats Stats() const override {
    CoreStats stats{.sessions = static_cast<int>(sessions_.size()), .programs_run = state_.programs_run};
    for (const auto& [id, session] : sessions_) {
      SessionStats one = session->Stats();
      stats.arrays += one.arrays;
      stats.executables += one.executables;
      stats.bytes_held += one.bytes_held;
      stats.by_session.emplace_back(session->name(), one);
    }
    return stats;
  }

 private:
  CoreState state_;
  std::unique_ptr<Eviction> eviction_;
  absl::btree_map<uint64_t, SessionImpl*> sessions_;
  uint64_t next_session_ = 1;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace

std::unique_ptr<Core> Core::Create(CoreOptions options) { return std::make_unique<CoreImpl>(std::move(options)); }

}  // namespace parkway::runtime
