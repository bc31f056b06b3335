#include "proxy/host_buffers.h"

#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/limits.h"
#include "base/random.h"
#include "base/status.h"

namespace parkway::proxy {
namespace {

absl::Status CheckSize(uint64_t handle, int64_t size) {
  if (size >= 0 && size <= limits::kMaxHostBufferBytes) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("host buffer ", handle, " is announced with ", size,
                                                 " bytes; it may have 0 to ", limits::kMaxHostBufferBytes));
}

}  // namespace

absl::StatusOr<runtime::PendingBytesRef> HostBuffers::Start(uint64_t handle, int64_t size, absl::Time now) {
  std::lock_guard lock(mutex_);
  PARKWAY_RETURN_IF_ERROR(closed_);
  auto it = incoming_.find(handle);
  if (it != incoming_.end() && it->second.started) {
    return absl::InvalidArgumentError(absl::StrCat("host buffer ", handle, " is stored a second time"));
  }
  absl::Status fits = CheckSize(handle, size);
  const bool taken = it != incoming_.end();
  if (fits.ok() && !taken &&
      (unclaimed_ + size > limits::kUnclaimedHostBytes ||
       static_cast<int64_t>(incoming_.size()) >= limits::kMaxHostBufferStreams)) {
    fits = absl::ResourceExhaustedError(absl::StrCat("host buffer ", handle, " of ", size, " bytes: this session has ",
                                                     incoming_.size(), " buffers of ", unclaimed_,
                                                     " bytes that no request has named yet"));
  }
  if (!fits.ok()) {
    if (taken) {
      runtime::PendingBytesRef bytes = std::move(it->second.bytes);
      incoming_.erase(it);
      bytes->Set(fits);
    }
    return fits;
  }
  Incoming& entry = taken ? it->second : incoming_[handle];
  if (!taken) {
    entry.bytes = std::make_shared<runtime::PendingBytes>();
    entry.size = size;
    entry.since = now;
    unclaimed_ += size;
  }
  entry.started = true;
  runtime::PendingBytesRef bytes = entry.bytes;
  if (taken) incoming_.erase(it);
  return bytes;
}

runtime::PendingBytesRef HostBuffers::Take(uint64_t handle, absl::Time now) {
  std::lock_guard lock(mutex_);
  auto it = incoming_.find(handle);
  if (closed_.ok() && it != incoming_.end() && !it->second.taken) {
    runtime::PendingBytesRef bytes = std::move(it->second.bytes);
    unclaimed_ -= it->second.size;
    incoming_.erase(it);
    return bytes;
  }
  auto bytes = std::make_shared<runtime::PendingBytes>();
  if (!closed_.ok()) {
    bytes->Set(closed_);
  } else if (it != incoming_.end()) {
    bytes->Set(absl::InvalidArgumentError(absl::StrCat("host buffer ", handle, " is used for a second array")));
  } else if (static_cast<int64_t>(incoming_.size()) >= limits::kMaxHostBufferStreams) {
    bytes->Set(absl::ResourceExhaustedError(
        absl::StrCat("host buffer ", handle, ": ", incoming_.size(), " others are waited for already")));
  } else {
    incoming_[handle] = Incoming{.bytes = bytes, .since = now, .taken = true};
  }
  return bytes;
}

absl::Status HostBuffers::Promise(uint64_t handle) {
  std::lock_guard lock(mutex_);
  PARKWAY_RETURN_IF_ERROR(closed_);
  if (static_cast<int64_t>(outgoing_.size()) >= limits::kMaxHandlesPerRequest) {
    return absl::ResourceExhaustedError(
        absl::StrCat("reading an array: ", outgoing_.size(), " others were read and never fetched and deleted"));
  }
  if (!outgoing_.try_emplace(handle).second) {
    return absl::InvalidArgumentError(absl::StrCat("host buffer ", handle, " is in use for another read"));
  }
  ++promised_;
  return absl::OkStatus();
}

absl::Status HostBuffers::Offer(uint64_t handle, absl::StatusOr<Bytes> bytes) {
  Then then;
  {
    std::lock_guard lock(mutex_);
    auto it = outgoing_.find(handle);
    if (it == outgoing_.end()) return closed_;  // deleted while it was read
    const int64_t size = bytes.ok() ? static_cast<int64_t>(bytes->size) : 0;
    if (offered_ + size > limits::kUnclaimedHostBytes) {
      bytes = absl::ResourceExhaustedError(absl::StrCat("reading an array of ", size, " bytes: ", outgoing_.size(),
                                                        " others of ", offered_,
                                                        " bytes were read and never fetched and deleted"));
    } else {
      offered_ += size;
    }
    --promised_;
    it->second.bytes = bytes;
    then = std::move(it->second.then);
  }
  if (then) then(bytes);
  return bytes.status();
}

void HostBuffers::Fetch(uint64_t handle, Then then) {
  absl::StatusOr<Bytes> bytes;
  {
    std::lock_guard lock(mutex_);
    auto it = outgoing_.find(handle);
    if (!closed_.ok()) {
      bytes = closed_;
    } else if (it == outgoing_.end()) {
      bytes = absl::FailedPreconditionError(absl::StrCat("there is no host buffer ", handle, " to fetch"));
    } else if (it->second.bytes.has_value()) {
      bytes = *it->second.bytes;
    } else if (it->second.then) {
      bytes = absl::FailedPreconditionError(absl::StrCat("host buffer ", handle, " is being fetched already"));
    } else {
      it->second.then = std::move(then);
      return;
    }
  }
  then(bytes);
}

void HostBuffers::Delete(uint64_t handle) {
  Outgoing freed;  // outside the lock
  {
    std::lock_guard lock(mutex_);
    auto it = outgoing_.find(handle);
    if (it == outgoing_.end()) return;
    freed = std::move(it->second);
    outgoing_.erase(it);
    if (!freed.bytes.has_value()) --promised_;
    if (freed.bytes.has_value() && freed.bytes->ok()) offered_ -= static_cast<int64_t>((*freed.bytes)->size);
  }
  if (freed.then) freed.then(absl::CancelledError(absl::StrCat("host buffer ", handle, " was deleted")));
}

int HostBuffers::promised() const {
  std::lock_guard lock(mutex_);
  return promised_;
}

void HostBuffers::FailOverdue(absl::Time limit) {
  std::vector<std::pair<uint64_t, runtime::PendingBytesRef>> overdue;
  {
    std::lock_guard lock(mutex_);
    for (auto it = incoming_.begin(); it != incoming_.end();) {
      auto here = it++;
      if (!here->second.taken || here->second.since > limit) continue;
      overdue.emplace_back(here->first, std::move(here->second.bytes));
      incoming_.erase(here);
    }
  }
  for (auto& [handle, bytes] : overdue) {
    bytes->Set(absl::AbortedError(absl::StrCat("the bytes of host buffer ", handle, " never came")));
  }
}

void HostBuffers::Close(const absl::Status& why) {
  absl::flat_hash_map<uint64_t, Incoming> incoming;
  absl::flat_hash_map<uint64_t, Outgoing> outgoing;
  {
    std::lock_guard lock(mutex_);
    closed_ = why;
    incoming.swap(incoming_);
    outgoing.swap(outgoing_);
    unclaimed_ = offered_ = 0;
    promised_ = 0;
  }
  for (auto& [handle, entry] : incoming) entry.bytes->Set(why);
  for (auto& [handle, entry] : outgoing) {
    if (entry.then) entry.then(why);
  }
}

int64_t HostBuffers::bytes_held() const {
  std::lock_guard lock(mutex_);
  return unclaimed_ + offered_;
}

absl::StatusOr<std::pair<uint64_t, HostBuffersRef>> HostBufferTable::Open() {
  std::lock_guard lock(mutex_);
  if (static_cast<int>(sessions_.size()) >= limits::kMaxSessionsPerProxy) {
    return absl::ResourceExhaustedError(
        absl::StrCat("this proxy has ", sessions_.size(), " sessions, as many as it takes; end one of them"));
  }
  auto buffers = std::make_shared<HostBuffers>();
  uint64_t id = RandomUint64();
  while (!sessions_.try_emplace(id, buffers).second) id = RandomUint64();
  return std::pair(id, std::move(buffers));
}

absl::StatusOr<HostBuffersRef> HostBufferTable::Find(uint64_t session) const {
  std::lock_guard lock(mutex_);
  auto it = sessions_.find(session);
  if (it == sessions_.end()) {
    return absl::PermissionDeniedError("no session of this proxy has that id; it ended, or never was");
  }
  return it->second;
}

void HostBufferTable::Close(uint64_t session, const absl::Status& why) {
  HostBuffersRef buffers;
  {
    std::lock_guard lock(mutex_);
    auto it = sessions_.find(session);
    if (it == sessions_.end()) return;
    buffers = std::move(it->second);
    sessions_.erase(it);
  }
  buffers->Close(why);
}

void HostBufferTable::FailOverdue(absl::Time limit) {
  std::vector<HostBuffersRef> all;
  {
    std::lock_guard lock(mutex_);
    for (const auto& [id, buffers] : sessions_) all.push_back(buffers);
  }
  for (const HostBuffersRef& buffers : all) buffers->FailOverdue(limit);
}

absl::Status StoreWriter::Append(const uint8_t* data, size_t size) {
  if (size == 0) return absl::OkStatus();
  if (static_cast<int64_t>(size) > size_ - written_) {
    return absl::InvalidArgumentError(absl::StrCat("a host buffer announced with ", size_, " bytes has at least ",
                                                   written_ + static_cast<int64_t>(size)));
  }
  if (size_ <= static_cast<int64_t>(limits::kInlinePutBytes)) {
    small_.append(reinterpret_cast<const char*>(data), size);
  } else {
    if (blob_ == nullptr) {
      PARKWAY_ASSIGN_OR_RETURN(blob_, Blob::CreateForOverwrite(size_));
    }
    std::memcpy(blob_->data() + written_, data, size);
  }
  written_ += static_cast<int64_t>(size);
  return absl::OkStatus();
}

absl::StatusOr<Bytes> StoreWriter::Finish() {
  if (written_ != size_) {
    return absl::InvalidArgumentError(
        absl::StrCat("a host buffer announced with ", size_, " bytes has only ", written_));
  }
  return blob_ != nullptr ? Blob::Share(blob_) : Bytes::OfString(std::move(small_));
}

}  // namespace parkway::proxy
