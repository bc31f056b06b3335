#include "fabric/bulk_puller.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/limits.h"
#include "base/machine.h"
#include "base/status.h"
#include "fabric/connect.h"

namespace parkway::fabric {

BulkOwner::BulkOwner(std::shared_ptr<Loop> loop, std::string endpoint, BulkOptions options)
    : loop_(std::move(loop)), endpoint_(std::move(endpoint)), options_(options) {}

void BulkOwner::Connect() {
  Dial(loop_, endpoint_, limits::kConnectTimeout, [self = shared_from_this()](absl::StatusOr<UniqueFd> fd) {
    if (self->closed_) return;
    if (!fd.ok()) return self->OnClosed(fd.status());
    self->connection_ = std::make_shared<BulkConnection>(self->loop_, *std::move(fd), self->endpoint_, nullptr);
    self->connection_->Start(self.get());
    for (const auto& [tag, pulling] : self->pulls_) self->Request(tag, pulling, true);
  });
}

void BulkOwner::Pull(uint64_t id, uint64_t size, Done done) {
  if (pulls_.size() >= static_cast<size_t>(limits::kMaxPullsPerConnection)) {
    return done(absl::ResourceExhaustedError(
        absl::StrCat(pulls_.size(), " transfers from ", endpoint_, " are under way; no more are begun")));
  }
  const uint64_t tag = next_tag_++;
  Pulling& pulling = pulls_[tag];
  pulling.id = id;
  pulling.size = size;
  pulling.done = std::move(done);
  pulling.progress = absl::Now();
  if (connection_) Request(tag, pulling, true);
}

// `local`: where the bytes lie will do, if this machine can map them.
void BulkOwner::Request(uint64_t tag, const Pulling& pulling, bool local) {
  BulkHeader header;
  header.kind = BulkKind::kPull;
  header.tag = tag;
  header.value = pulling.id;
  connection_->Send(header, local ? MachineIdentity() : std::string());
}

absl::StatusOr<uint8_t*> BulkOwner::Place(const BulkHeader& header) {
  auto it = pulls_.find(header.tag);
  if (it == pulls_.end()) return nullptr;  // given up
  Pulling& pulling = it->second;
  const bool first = header.kind == BulkKind::kStart;
  if (first != (pulling.blob == nullptr))
    return absl::InvalidArgumentError("the bytes of a transfer came out of order");
  if (first && header.value != pulling.size) {
    GiveUp(header.tag, absl::AbortedError(absl::StrCat("its owner has ", header.value, " bytes")));
    return nullptr;
  }
  if (header.length > pulling.size - pulling.placed || (header.length == 0 && pulling.size > 0)) {
    return absl::InvalidArgumentError("a transfer brought more bytes than it has");
  }
  if (first) {
    auto blob = Blob::CreateForOverwrite(pulling.size);
    if (!blob.ok()) {
      GiveUp(header.tag, blob.status());
      return nullptr;
    }
    pulling.blob = *std::move(blob);
  }
  uint8_t* place = pulling.blob->data() + pulling.placed;
  pulling.placed += header.length;
  return place;
}

absl::Status BulkOwner::OnMessage(const BulkHeader& header, std::string_view payload) {
  auto it = pulls_.find(header.tag);
  switch (header.kind) {
    case BulkKind::kStart:
    case BulkKind::kChunk:
      if (it == pulls_.end()) return absl::OkStatus();
      it->second.received += header.length;
      it->second.progress = absl::Now();
      if (it->second.received == it->second.size) Finish(header.tag, Blob::Share(it->second.blob));
      return absl::OkStatus();
    case BulkKind::kLocal:
      if (it != pulls_.end()) MapLocal(header.tag, it->second, header.value, std::string(payload));
      return absl::OkStatus();
    case BulkKind::kRefused: {
      // A code from the wire: only those that an owner's own error may have.
      auto code = static_cast<absl::StatusCode>(header.code);
      if (header.code == 0 || header.code > 16) code = absl::StatusCode::kAborted;
      if (it != pulls_.end()) Finish(header.tag, absl::Status(code, std::string(payload)));
      return absl::OkStatus();
    }
    default:
      return absl::InvalidArgumentError("the owner of a transfer sent what only a puller may");
  }
}

void BulkOwner::MapLocal(uint64_t tag, Pulling& pulling, uint64_t size, const std::string& path) {
  if (size != pulling.size) return GiveUp(tag, absl::AbortedError(absl::StrCat("its owner has ", size, " bytes")));
  auto mapped = Blob::Map(path, size);
  if (mapped.ok()) return Finish(tag, *std::move(mapped));
  pulling.progress = absl::Now();
  Request(tag, pulling, false);
}

void BulkOwner::Finish(uint64_t tag, absl::StatusOr<Bytes> result) {
  auto node = pulls_.extract(tag);
  if (node.empty()) return;
  const Pulling& pulling = node.mapped();
  if (!result.ok()) {
    result = Annotate(result.status(), absl::StrCat("pulling ", pulling.size, " bytes from ", endpoint_, " (transfer ",
                                                    absl::Hex(pulling.id), ")"));
  }
  node.mapped().done(std::move(result));
}

void BulkOwner::GiveUp(uint64_t tag, const absl::Status& why) {
  BulkHeader header;
  header.kind = BulkKind::kCancel;
  header.tag = tag;
  if (connection_) {
    connection_->Send(header);
    connection_->DropPlace(tag);
  }
  Finish(tag, why);
}

void BulkOwner::Sweep(absl::Time now) {
  std::vector<uint64_t> stalled;
  for (const auto& [tag, pulling] : pulls_) {
    const absl::Duration limit = pulling.blob ? options_.stall : options_.wait + options_.stall;
    if (now - pulling.progress > limit) stalled.push_back(tag);
  }
  for (const uint64_t tag : stalled) {
    const auto it = pulls_.find(tag);
    if (it == pulls_.end()) continue;
    const Pulling& pulling = it->second;
    GiveUp(tag, absl::AbortedError(absl::StrCat("no byte came for ", absl::FormatDuration(now - pulling.progress), ", ",
                                                pulling.received, " came before")));
  }
}

void BulkOwner::OnClosed(absl::Status why) { CloseAll(absl::UnavailableError(std::string(why.message()))); }

void BulkOwner::CloseAll(const absl::Status& why) {
  const auto keep = shared_from_this();  // a callback may end everything
  closed_ = true;
  if (connection_) connection_->Close();
  connection_ = nullptr;
  while (!pulls_.empty()) Finish(pulls_.begin()->first, why);
}

void BulkPuller::Pull(const std::string& endpoint, uint64_t id, uint64_t size, Bulk::Done done) {
  std::shared_ptr<BulkOwner>& owner = owners_[endpoint];
  if (!owner || owner->closed()) {
    owner = std::make_shared<BulkOwner>(loop_, endpoint, options_);
    owner->Connect();
  }
  owner->Pull(id, size, std::move(done));
}

void BulkPuller::Sweep(absl::Time now) {
  absl::erase_if(owners_, [](const auto& entry) { return entry.second->closed(); });
  std::vector<std::shared_ptr<BulkOwner>> owners;  // callbacks may change the table
  for (auto& [endpoint, owner] : owners_) owners.push_back(owner);
  for (auto& owner : owners) owner->Sweep(now);
}

void BulkPuller::CloseAll(const absl::Status& why) {
  for (auto& [endpoint, owner] : std::exchange(owners_, {})) owner->CloseAll(why);
}

}  // namespace parkway::fabric
