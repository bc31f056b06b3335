#include "engine/jaxlib/context.h"

#include <glog/logging.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/limits.h"
#include "base/status.h"
#include "engine/jaxlib/gloo_sockets.h"
#include "src/engine/jaxlib/coordination.pb.h"

namespace parkway::engine {
namespace {

constexpr char kGlooKeys[] = "cpu:gloo/";
constexpr int kIdsPerHost = 2048;

// XLA's number of a host's device.
int ClientId(int rank, size_t ordinal) { return kIdsPerHost * rank + static_cast<int>(ordinal); }

absl::Status CheckMembers(const ContextSpec& spec, int num_local) {
  size_t ranks = 0;
  for (size_t i = 0; i < spec.members.size(); ++i) {
    if (spec.members[i].rank != static_cast<int>(i) || spec.members[i].devices.size() > kIdsPerHost) {
      return absl::InvalidArgumentError(absl::StrCat("context ", spec.id, ": its members are not in rank order"));
    }
    ranks += spec.members[i].devices.size();
  }
  if (spec.rank < 0 || spec.rank >= static_cast<int>(spec.members.size()) ||
      static_cast<int>(spec.members[spec.rank].devices.size()) != num_local) {
    return absl::InvalidArgumentError(absl::StrCat("context ", spec.id, " names other devices for rank ", spec.rank,
                                                   " than this host's ", num_local));
  }
  if (ranks > limits::kMaxContextRanks) {
    return absl::InvalidArgumentError(absl::StrCat("a program over ", spec.members.size(), " hosts with ", ranks,
                                                   " CPU devices; Gloo connects each with each, so ",
                                                   limits::kMaxContextRanks, " is the most"));
  }
  return absl::OkStatus();
}

}  // namespace

JaxContext::JaxContext(const Api& api, ContextSpec spec)
    : api_(api),
      id_(spec.id),
      rank_(spec.rank),
      members_(std::move(spec.members)),
      keys_(std::make_shared<KeyStore>(std::move(spec.publish))) {
  for (const ContextMember& member : members_) {
    for (size_t i = 0; i < member.devices.size(); ++i) ids_[member.devices[i]] = ClientId(member.rank, i);
  }
}

absl::StatusOr<std::shared_ptr<JaxContext>> JaxContext::Open(const Api& api, const std::string& bind_host,
                                                             int num_local, ContextSpec spec) {
  PARKWAY_RETURN_IF_ERROR(CheckMembers(spec, num_local));
  std::shared_ptr<JaxContext> context(new JaxContext(api, std::move(spec)));
  context->SeedTopology();
  if (absl::Status status = context->Connect(bind_host, num_local); !status.ok()) {
    context->keys_->Close(status);
    return Annotate(status, absl::StrCat("opening context ", context->id_));
  }
  return context;
}

// XLA's clients tell each other what devices they have before anything else. Written down beforehand, a client needs no
// other host to come up.
void JaxContext::SeedTopology() {
  xla::coordination::GlobalTopology global;
  for (const ContextMember& member : members_) {
    xla::coordination::LocalTopology& local = *global.add_processes();
    local.set_process_id(member.rank);
    local.set_boot_id(absl::StrCat("parkway-", id_, "-", member.rank));
    for (size_t i = 0; i < member.devices.size(); ++i) {
      const int id = ClientId(member.rank, i);
      xla::coordination::TopologyDevice& device = *local.add_devices();
      device.set_local_device_ordinal(static_cast<int32_t>(i));
      device.set_global_device_id(id);
      device.set_device_kind("cpu");
      device.set_to_string(absl::StrCat("CpuDevice(id=", id, ")"));
      device.set_debug_string(absl::StrCat("cpu:", id));
    }
    keys_->Insert(absl::StrCat("cpu:local_topology/cpu/", member.rank), local.SerializeAsString());
  }
  keys_->Insert("cpu:global_topology/cpu", global.SerializeAsString());
}

absl::Status JaxContext::Connect(const std::string& bind_host, int num_local) {
  PARKWAY_ASSIGN_OR_RETURN(CoordinationServer * server, CoordinationServer::Get());
  Gil gil;
  DropQueued();
  PyRef distributed;
  auto connect = [&]() -> absl::Status {
    Gil inner;
    PyRef address(PyUnicode_FromString(server->address().c_str()));
    PyRef rank(PyLong_FromLong(rank_));
    PARKWAY_ASSIGN_OR_RETURN(distributed, CallPython(api_.connect, {address.get(), rank.get()}));
    return absl::OkStatus();
  };
  {
    // Its lock comes before the GIL.
    GilRelease release;
    PARKWAY_RETURN_IF_ERROR(server->Connect(rank_, keys_, connect));
  }
  PyRef rank(PyLong_FromLong(rank_));
  PyRef ranks(PyLong_FromLong(static_cast<long>(members_.size())));
  PyRef devices(PyLong_FromLong(num_local));
  PyRef host(PyUnicode_FromString(bind_host.c_str()));
  PARKWAY_ASSIGN_OR_RETURN(PyRef client, CallPython(api_.context_client, {distributed.get(), rank.get(), ranks.get(),
                                                                          devices.get(), host.get()}));
  absl::StatusOr<std::shared_ptr<Client>> wrapped =
      Client::Wrap(api_, std::move(client), ClientId(rank_, 0), num_local);
  if (!wrapped.ok()) return wrapped.status();
  absl::MutexLock lock(&mutex_);
  client_ = *std::move(wrapped);
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<JaxExecutable>> JaxContext::Load(const LoadSpec& spec) {
  std::vector<int> ids;
  for (int device : spec.device_ids) {
    auto found = ids_.find(device);
    if (found == ids_.end()) {
      return absl::InvalidArgumentError(
          absl::StrCat("program ", spec.name, " runs on device ", device, ", which is not in its context"));
    }
    ids.push_back(found->second);
  }
  std::shared_ptr<Client> client;
  {
    absl::MutexLock lock(&mutex_);
    PARKWAY_RETURN_IF_ERROR(closed_);
    client = client_;
  }
  PARKWAY_ASSIGN_OR_RETURN(std::shared_ptr<JaxExecutable> executable,
                           JaxExecutable::Load(api_, client, shared_from_this(), ids, spec));
  absl::MutexLock lock(&mutex_);
  if (!closed_.ok()) {
    executable->Unload();
    return closed_;
  }
  std::erase_if(executables_, [](const auto& one) { return one.expired(); });
  executables_.push_back(executable);
  return executable;
}

// Programs with one local device and programs with several may meet in one Gloo clique without knowing of each other,
// and then mix up their messages or wait for each other's threads, whatever the order: one kind ends before the other
// begins. Those with several devices XLA runs one after the other; those with one each hold a thread of its pool while
// they wait for the other hosts, and the one that the others wait for must find a thread left.
absl::Status JaxContext::Enter(const DeviceSetRef& set) {
  const bool several = set->locals.size() > 1;
  std::vector<CompletionRef> others;
  {
    absl::MutexLock lock(&mutex_);
    PARKWAY_RETURN_IF_ERROR(closed_);
    const size_t threads = static_cast<size_t>(PoolThreads());
    if (several != several_) {
      others = in_flight_;
    } else if (!several && in_flight_.size() >= threads) {
      others.assign(in_flight_.begin(), in_flight_.end() - static_cast<ptrdiff_t>(threads - 1));
    }
    several_ = several;
    if (others.empty()) {
      ++launching_;
      return absl::OkStatus();
    }
    // They stay in flight: Close waits for these too.
  }
  for (const CompletionRef& completion : others) completion->Wait().IgnoreError();
  absl::MutexLock lock(&mutex_);
  PARKWAY_RETURN_IF_ERROR(closed_);
  ++launching_;
  return absl::OkStatus();
}

void JaxContext::Leave(const CompletionRef& completion) {
  absl::MutexLock lock(&mutex_);
  --launching_;
  std::erase_if(in_flight_, [](const CompletionRef& one) { return one->done(); });
  if (completion != nullptr) in_flight_.push_back(completion);
}

absl::Status JaxContext::Explain(const absl::Status& status) {
  absl::MutexLock lock(&mutex_);
  return status.ok() || closed_.ok() ? status : closed_;
}

void JaxContext::Close(absl::Status cause) {
  if (cause.ok()) cause = absl::AbortedError("the hosts that ran this program together were parted");
  {
    absl::MutexLock lock(&mutex_);
    if (!closed_.ok()) return;
    closed_ = cause;
  }
  keys_->Close(cause);
  CutUntilIdle();
  std::vector<std::weak_ptr<JaxExecutable>> executables;
  std::shared_ptr<Client> client;
  {
    absl::MutexLock lock(&mutex_);
    executables.swap(executables_);
    client.swap(client_);
  }
  for (const std::weak_ptr<JaxExecutable>& weak : executables) {
    if (auto executable = weak.lock()) executable->Unload();
  }
}

void JaxContext::CutUntilIdle() {
  const absl::Time start = absl::Now();
  bool slow = false;
  while (true) {
    {
      absl::MutexLock lock(&mutex_);
      std::erase_if(in_flight_, [](const CompletionRef& one) { return one->done(); });
      if (launching_ == 0 && in_flight_.empty()) return;
    }
    // Again and again: a collective may only now be connecting.
    CutConnections(GlooListeners(keys_->ValuesUnder(kGlooKeys)));
    absl::SleepFor(limits::kCutPeriod);
    if (!slow && absl::Now() - start > limits::kSlowClose) {
      slow = true;
      LOG(WARNING) << "context " << id_ << " doesn't close: its programs still run, though its connections are cut";
    }
  }
}

}  // namespace parkway::engine
