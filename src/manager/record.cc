// ManagerState's record: what the next manager on this state directory knows of this one.
#include "base/status.h"
#include "glog/logging.h"
#include "manager/manager_state.h"
#include "manager/slice_type.h"

namespace parkway::manager {

void ManagerState::Recall() {
  const ManagerRecord& record = options_.record;
  instance_ = record.instance() != 0 ? record.instance() : options_.random();
  starts_ = record.starts() + 1;
  next_epoch_ = std::max<uint64_t>(record.next_epoch(), 1);
  for (const LeaseRecord& lease : record.leases()) remembered_[lease.lease()] = lease;
  const SliceType& expected = options_.expected_type;
  for (const SliceRecord& old : record.slices()) {
    const bool fits = expected.platform().empty() || SameSliceType(old.type(), expected);
    absl::StatusOr<Slice*> slice = absl::FailedPreconditionError("it is of another type than --instance_type says");
    if (fits && old.hosts_size() == old.type().hosts()) slice = AddSlice(old.name(), old.type());
    if (!slice.ok()) {
      LOG(WARNING) << "What was known of " << old.name() << " is left out: " << slice.status().message();
      continue;
    }
    if (remembered_.contains(old.lease())) (*slice)->orphan = old.lease();
    for (int i = 0; i < old.hosts_size(); ++i) {
      Host& host = (*slice)->hosts[i];
      host.worker = old.hosts(i).worker();
      if (old.hosts(i).given_up() == 0) continue;
      host.engine.set_lease(old.lease());
      host.engine.mutable_endpoint()->set_incarnation(old.hosts(i).given_up());
    }
  }
  if (record.instance() != 0) {
    LOG(INFO) << "The manager goes on as instance " << Hex(instance_) << " (start " << starts_ << "), with "
              << slices_.size() << " slices and " << remembered_.size() << " leases of before.";
  }
  SaveSoon();
}

ManagerRecord ManagerState::Record() const {
  ManagerRecord record;
  record.set_instance(instance_);
  record.set_starts(starts_);
  record.set_next_epoch(next_epoch_);
  for (const auto& slice : slices_) {
    SliceRecord& s = *record.add_slices();
    s.set_name(slice->name);
    *s.mutable_type() = slice->type;
    s.set_lease(slice->lease != 0 ? slice->lease : slice->orphan);
    for (const Host& host : slice->hosts) {
      HostRecord& h = *s.add_hosts();
      h.set_worker(host.worker);
      if (!host.engine.up()) h.set_given_up(host.engine.endpoint().incarnation());
    }
  }
  std::map<uint64_t, LeaseRecord> leases;  // by epoch
  for (const auto& [id, lease] : remembered_) leases[lease.epoch()] = lease;
  for (const auto& [id, lease] : leases_) {
    LeaseRecord& l = leases[lease.epoch];
    l.set_lease(id);
    l.set_token(lease.token);
    l.set_epoch(lease.epoch);
    l.set_owner(lease.request.owner());
  }
  for (const auto& [epoch, lease] : leases) *record.add_leases() = lease;
  return record;
}

// What changes together is written together.
void ManagerState::SaveSoon() {
  if (options_.save == nullptr || save_timer_ != 0) return;
  save_timer_ = executor_->After(absl::ZeroDuration(), [this] {
    save_timer_ = 0;
    options_.save(Record());
  });
}

}  // namespace parkway::manager
