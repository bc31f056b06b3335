#include "runtime/contexts.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/limits.h"
#include "base/status.h"
#include "base/status_wire.h"

namespace parkway::runtime {
namespace {

std::string MemberKey(const HostList& hosts, const std::vector<uint64_t>& incarnations) {
  std::string key;
  for (size_t i = 0; i < hosts.size(); ++i) absl::StrAppend(&key, hosts[i], "@", incarnations[i], ",");
  return key;
}

}  // namespace

absl::StatusOr<const Contexts::Context*> Contexts::Get(const HostList& hosts) {
  int ranks = 0;
  std::vector<uint64_t> incarnations;
  for (int host : hosts) {
    ranks += static_cast<int>(topology_->hosts()[host].devices.size());
    incarnations.push_back(engines_->incarnation(host));
  }
  const std::string& platform = topology_->slices()[0].platform;
  const int most = platform == "cpu" ? limits::kMaxContextRanks : limits::kMaxSimDevices;
  if (ranks > most) {
    return absl::InvalidArgumentError(absl::StrCat("a program that spans ", hosts.size(), " ", platform, " hosts with ",
                                                   ranks,
                                                   " devices needs a connection between every two devices; at "
                                                   "most ",
                                                   most, " devices are allowed. Use fewer devices for one program"));
  }
  auto it = by_members_.find(MemberKey(hosts, incarnations));
  Context* context = it != by_members_.end() ? contexts_.at(it->second).get() : Open(hosts);
  context->last_used = ++uses_;
  return context;
}

Contexts::Context* Contexts::Open(const HostList& hosts) {
  CloseIdle();
  auto owned = std::make_unique<Context>();
  Context* context = owned.get();
  context->id = next_id_++;
  context->hosts = hosts;
  context->unopened = hosts;
  Op op;
  op.set_context(context->id);
  op.mutable_open_context()->set_context(context->id);
  for (int host : hosts) {
    context->incarnations.push_back(engines_->incarnation(host));
    ContextMember* member = op.mutable_open_context()->add_members();
    member->set_host(host);
    member->set_incarnation(engines_->incarnation(host));
    for (int device : topology_->hosts()[host].devices) member->add_devices(device);
  }
  by_members_[MemberKey(hosts, context->incarnations)] = context->id;
  contexts_.emplace(context->id, std::move(owned));
  for (int host : hosts) engines_->TellControl(host, op);
  return context;
}

void Contexts::LaunchStarted(uint64_t id) {
  if (auto it = contexts_.find(id); it != contexts_.end()) ++it->second->launches;
}

void Contexts::LaunchEnded(uint64_t id, const absl::Status& error) {
  auto it = contexts_.find(id);
  if (it == contexts_.end()) return;
  --it->second->launches;
  // A failed collective may have left its connections half way through a message: nothing may run on them any more.
  if (!error.ok() && it->second->state != State::kClosed) Close(*it->second, error);
  if (it->second->state == State::kClosed && it->second->launches == 0) contexts_.erase(it);
}

void Contexts::Close(Context& context, const absl::Status& cause) {
  if (context.state == State::kClosed) return;
  context.state = State::kClosed;
  last_failure_ = cause;
  by_members_.erase(MemberKey(context.hosts, context.incarnations));
  Op op;
  op.set_context(context.id);
  op.mutable_close_context()->set_context(context.id);
  *op.mutable_close_context()->mutable_cause() = ToProto(cause);
  for (size_t i = 0; i < context.hosts.size(); ++i) {
    if (engines_->incarnation(context.hosts[i]) == context.incarnations[i]) engines_->TellControl(context.hosts[i], op);
  }
  changed_();
}

void Contexts::CloseIdle() {
  int open = 0;
  Context* oldest = nullptr;
  for (auto& [id, context] : contexts_) {
    if (context->state == State::kClosed) continue;
    ++open;
    if (context->launches == 0 && (oldest == nullptr || context->last_used < oldest->last_used)) oldest = context.get();
  }
  if (open < limits::kMaxOpenContexts || oldest == nullptr) return;
  uint64_t id = oldest->id;
  Close(*oldest, absl::CancelledError("the context was idle and made room for another one"));
  contexts_.erase(id);
}

void Contexts::OnHostLost(int host, const absl::Status& cause) {
  std::vector<Context*> hit;
  for (auto& [id, context] : contexts_) {
    if (std::find(context->hosts.begin(), context->hosts.end(), host) != context->hosts.end())
      hit.push_back(context.get());
  }
  for (Context* context : hit) {
    Close(*context, cause);
    if (context->launches == 0) contexts_.erase(context->id);
  }
}

void Contexts::OnState(int host, const ContextState& state) {
  auto it = contexts_.find(state.context());
  if (it == contexts_.end()) return;
  Context& context = *it->second;
  if (context.state != State::kOpening) return;
  if (!state.open()) {
    Close(context,
          Annotate(FromProto(state.status()), absl::StrCat("opening connections between the hosts of a program, on ",
                                                           topology_->DescribeHost(host))));
    if (context.launches == 0) contexts_.erase(context.id);
    return;
  }
  auto at = std::find(context.unopened.begin(), context.unopened.end(), host);
  if (at != context.unopened.end()) context.unopened.erase(at);
  if (!context.unopened.empty()) return;
  context.state = State::kOpen;
  changed_();
}

void Contexts::OnKeyValue(int host, const KeyValue& key) {
  auto it = contexts_.find(key.context());
  if (it == contexts_.end()) return;
  Op op;
  op.set_context(key.context());
  *op.mutable_key_value() = key;
  for (int member : it->second->hosts) {
    if (member != host) engines_->TellControl(member, op);
  }
}

}  // namespace parkway::runtime
