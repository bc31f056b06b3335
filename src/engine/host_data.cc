// Bytes in and out of an EngineHost: arrays built of host bytes and of other shards, exports, reads.
#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/limits.h"
#include "base/status.h"
#include "base/status_wire.h"
#include "engine/host_impl.h"
#include "ifrt/strides.h"

namespace parkway::engine {
namespace {

constexpr int kMaxPiecesPerShard = 4096;

// INVALID_ARGUMENT unless the pieces cover the shard, each element once.
absl::Status CheckCover(const BuildShard& shard) {
  if (shard.pieces.size() > kMaxPiecesPerShard) {
    return absl::InvalidArgumentError(absl::StrCat("a shard of more than ", kMaxPiecesPerShard, " pieces"));
  }
  int64_t covered = 0;
  for (size_t i = 0; i < shard.pieces.size(); ++i) {
    covered += Elements(shard.pieces[i].to.size);
    for (size_t j = 0; j < i; ++j) {
      if (Overlap(shard.pieces[i].to, shard.pieces[j].to)) {
        return absl::InvalidArgumentError(absl::StrCat("pieces ", j, " and ", i, " of a shard overlap"));
      }
    }
  }
  if (covered != Elements(shard.type.dims)) {
    return absl::InvalidArgumentError(
        absl::StrCat("the pieces of a shard of ", ToString(shard.type), " cover ", covered, " elements of it"));
  }
  return absl::OkStatus();
}

// Whether the shard is all of its one dense source: it needs no copy.
bool IsWholeSource(const BuildShard& shard, const std::vector<Source>& sources) {
  if (shard.pieces.size() != 1) return false;
  const Source& source = sources[shard.pieces[0].source];
  return source.byte_strides.empty() && shard.pieces[0].from == WholeOf(source.type) &&
         shard.pieces[0].to == WholeOf(shard.type);
}

// Bytes that the source must have come with.
absl::StatusOr<int64_t> HostBytes(const Source& source) {
  if (source.byte_strides.empty()) return DenseBytes(source.type);
  return ifrt::StridedSize(ShapeOf(source.type), source.byte_strides, ifrt::ByteWidth(source.type.dtype));
}

// Copies a box of `size` between arrays; `to` is dense, `from` too when it has no strides.
void CopyBox(const Type& from, absl::Span<const int64_t> from_strides, const uint8_t* src,
             absl::Span<const int64_t> from_start, const Type& to, uint8_t* dst, absl::Span<const int64_t> to_start,
             absl::Span<const int64_t> size) {
  const int width = ifrt::ByteWidth(to.dtype);
  const ifrt::Dims dense = ifrt::RowMajorStrides(ShapeOf(from), width);
  if (from_strides.empty()) from_strides = dense;
  const ifrt::Dims to_strides = ifrt::RowMajorStrides(ShapeOf(to), width);
  for (size_t i = 0; i < size.size(); ++i) {
    src += from_start[i] * from_strides[i];
    dst += to_start[i] * to_strides[i];
  }
  ifrt::CopyStrided(reinterpret_cast<const std::byte*>(src), from_strides, reinterpret_cast<std::byte*>(dst),
                    to_strides, size, width);
}

absl::StatusOr<Type> DataType(const TypeProto& proto) {
  PARKWAY_ASSIGN_OR_RETURN(Type type, TypeFromProto(proto));
  if (ifrt::ByteWidth(type.dtype) == 0) {
    return absl::UnimplementedError(absl::StrCat("arrays of ", ifrt::Name(type.dtype), " have no bytes on devices"));
  }
  return type;
}

}  // namespace

// ---- Arrays of host bytes and of other shards ----------------------------------------------------------------------

absl::Status HostImpl::PlanPut(Put& put, Build& build) const {
  for (HostSource& proto : *put.mutable_sources()) {
    Source& source = build.sources.emplace_back();
    PARKWAY_ASSIGN_OR_RETURN(source.type, DataType(proto.type()));
    source.byte_strides.assign(proto.byte_strides().begin(), proto.byte_strides().end());
    if (!source.byte_strides.empty() && source.byte_strides.size() != source.type.dims.size()) {
      return absl::InvalidArgumentError(
          absl::StrCat("a host buffer of ", ToString(source.type), " with ", source.byte_strides.size(), " strides"));
    }
    if (!proto.has_transfer()) source.bytes = Bytes::OfString(std::move(*proto.mutable_inline_bytes()));
  }
  for (const PutShard& proto : put.shards()) {
    auto local = local_of_.find(proto.device());
    if (local == local_of_.end()) continue;  // another host's
    BuildShard& shard = build.shards.emplace_back();
    shard.device = local->second;
    PARKWAY_ASSIGN_OR_RETURN(shard.type, DataType(proto.type()));
    if (proto.source() < 0 || proto.source() >= put.sources_size()) {
      return absl::InvalidArgumentError(
          absl::StrCat("a shard of host buffer ", proto.source(), " of ", put.sources_size()));
    }
    const Type& whole = build.sources[proto.source()].type;
    PARKWAY_ASSIGN_OR_RETURN(Box from, BoxFromProto(proto.has_region(), proto.region(), whole));
    if (from.size != shard.type.dims || whole.dtype != shard.type.dtype) {
      return absl::InvalidArgumentError(absl::StrCat("a shard of ", ToString(shard.type), " can't be made of ",
                                                     ToString(Type{whole.dtype, from.size}), " of a host buffer"));
    }
    shard.pieces.push_back({proto.source(), std::move(from), WholeOf(shard.type)});
  }
  return absl::OkStatus();
}

void HostImpl::HandlePut(Op& op) {
  Put& put = *op.mutable_put();
  auto build = std::make_shared<Build>();
  build->seq = op.seq();
  build->session = op.session();
  const absl::Status plan = PlanPut(put, *build);
  {
    Turn turn(*this);
    if (!StartBuild(turn, put.array(), put.memory_kind(), build, plan)) return;
    for (int i = 0; i < put.sources_size(); ++i) {
      if (put.sources(i).has_transfer()) ++build->left;
    }
  }
  for (int i = 0; i < put.sources_size(); ++i) {
    if (put.sources(i).has_transfer()) FetchSource(build, i, put.sources(i).transfer());
  }
  Turn turn(*this);
  OneLeft(turn, build);
}

absl::Status HostImpl::PlanGather(Turn& turn, const Gather& gather, Build& build,
                                  std::vector<std::pair<int, Piece>>& views,
                                  std::vector<std::pair<int, const Transfer*>>& fetches) {
  PARKWAY_ASSIGN_OR_RETURN(const std::string kind, MemoryKind(gather.memory_kind()));
  for (const GatherShard& proto : gather.shards()) {
    auto local = local_of_.find(proto.device());
    if (local == local_of_.end()) continue;  // another host's
    BuildShard& shard = build.shards.emplace_back();
    shard.device = local->second;
    PARKWAY_ASSIGN_OR_RETURN(shard.type, DataType(proto.type()));
    for (const parkway::Piece& piece_proto : proto.pieces()) {
      Source source;
      PARKWAY_ASSIGN_OR_RETURN(source.type, DataType(piece_proto.source_type()));
      BuildPiece piece{static_cast<int>(build.sources.size()), {}, {}};
      PARKWAY_ASSIGN_OR_RETURN(piece.from, BoxFromProto(piece_proto.has_from(), piece_proto.from(), source.type));
      PARKWAY_ASSIGN_OR_RETURN(piece.to, BoxFromProto(piece_proto.has_to(), piece_proto.to(), shard.type));
      if (piece.from.size != piece.to.size || source.type.dtype != shard.type.dtype) {
        return absl::InvalidArgumentError(
            absl::StrCat("a piece of ", ToString(Type{source.type.dtype, piece.from.size}), " can't become ",
                         ToString(Type{shard.type.dtype, piece.to.size})));
      }
      if (piece_proto.local().array() == 0) {
        fetches.emplace_back(piece.source, &piece_proto.transfer());
      } else {
        absl::StatusOr<Piece> from = FindShard(turn, piece_proto.local());
        const bool alias = gather.may_alias() && !InArena(kind) && from.ok() && proto.pieces_size() == 1 &&
                           from->device == shard.device && from->slot->memory_kind == kind &&
                           source.type == shard.type && piece.to == WholeOf(shard.type) && piece.from == piece.to;
        if (!from.ok()) {
          source.error = from.status();
        } else if (alias) {
          shard.alias = *std::move(from);
        } else {
          views.emplace_back(piece.source, *std::move(from));
        }
      }
      build.sources.push_back(std::move(source));
      shard.pieces.push_back(std::move(piece));
    }
    PARKWAY_RETURN_IF_ERROR(CheckCover(shard));
  }
  return absl::OkStatus();
}

void HostImpl::HandleGather(const Op& op) {
  const Gather& gather = op.gather();
  auto build = std::make_shared<Build>();
  build->seq = op.seq();
  build->session = op.session();
  std::vector<std::pair<int, Piece>> views;
  std::vector<std::pair<int, const Transfer*>> fetches;
  {
    Turn turn(*this);
    const absl::Status plan = PlanGather(turn, gather, *build, views, fetches);
    if (!StartBuild(turn, gather.array(), gather.memory_kind(), build, plan)) return;
    build->left += static_cast<int>(views.size() + fetches.size());
    for (auto& [source, piece] : views) {
      ++piece.slot->uses;
      WhenLaunched(turn, *piece.slot, [self = shared_from_this(), build, source = source, piece = piece] {
        self->ViewSource(build, source, piece);
      });
    }
    for (BuildShard& shard : build->shards) {
      if (shard.alias.slot == nullptr) continue;
      ++build->left;
      ++shard.alias.slot->uses;
      WhenLaunched(turn, *shard.alias.slot, [self = shared_from_this(), build] {
        Turn turn(*self);
        self->OneLeft(turn, build);
      });
    }
  }
  for (const auto& [source, transfer] : fetches) FetchSource(build, source, *transfer);
  Turn turn(*this);
  OneLeft(turn, build);
}

// Promises the result. False when the operation has failed.
bool HostImpl::StartBuild(Turn& turn, uint64_t array, const std::string& memory_kind, const BuildRef& build,
                          const absl::Status& plan) {
  absl::Status error = plan;
  absl::StatusOr<std::string> kind = MemoryKind(memory_kind);
  error.Update(kind.status());
  std::vector<int> devices;
  for (const BuildShard& shard : build->shards) {
    if (std::count(devices.begin(), devices.end(), shard.device) != 0) {
      error.Update(absl::InvalidArgumentError(absl::StrCat("two shards on device ", LeaseDevice(shard.device))));
    }
    devices.push_back(shard.device);
  }
  absl::StatusOr<SlotRef> slot = Promise(turn, array, std::move(devices), kind.value_or(""));
  error.Update(slot.status());
  if (!error.ok()) {
    error = Annotate(error, absl::StrCat("making array ", array));
    if (slot.ok()) SetFailed(turn, **slot, error);
    turn.Fail(build->seq, error);
    return false;
  }
  build->out = *std::move(slot);
  return true;
}

void HostImpl::FetchSource(const BuildRef& build, int source, const Transfer& transfer) {
  bulk_.Fetch(transfer, [self = shared_from_this(), build, source](absl::StatusOr<Bytes> bytes) {
    self->SourceReady(build, source, std::move(bytes));
  });
}

void HostImpl::ViewSource(const BuildRef& build, int source, const Piece& piece) {
  ViewShard(piece, [self = shared_from_this(), build, source](absl::StatusOr<Bytes> bytes) {
    self->SourceReady(build, source, std::move(bytes));
  });
  Turn turn(*this);
  Unuse(turn, *piece.slot);
}

void HostImpl::SourceReady(const BuildRef& build, int source, absl::StatusOr<Bytes> bytes) {
  Turn turn(*this);
  if (bytes.ok()) {
    build->sources[source].bytes = *std::move(bytes);
  } else {
    build->sources[source].error = bytes.status();
  }
  OneLeft(turn, build);
}

void HostImpl::OneLeft(Turn& turn, const BuildRef& build) {
  if (--build->left > 0) return;
  auto finish = [self = shared_from_this(), build] { self->FinishBuild(build); };
  if (InArena(build->out->memory_kind)) return threads_.pool->Post(std::move(finish));
  int64_t to_copy = 0;
  for (const BuildShard& shard : build->shards) {
    if (shard.alias.slot == nullptr && !IsWholeSource(shard, build->sources)) to_copy += DenseBytes(shard.type);
  }
  if (to_copy <= static_cast<int64_t>(limits::kInlinePutBytes)) return turn.Then(std::move(finish));
  threads_.pool->Post(std::move(finish));
}

absl::StatusOr<Bytes> HostImpl::MakeShard(const Build& build, const BuildShard& shard) const {
  for (const BuildPiece& piece : shard.pieces) {
    const Source& source = build.sources[piece.source];
    PARKWAY_RETURN_IF_ERROR(source.error);
    PARKWAY_ASSIGN_OR_RETURN(const int64_t needed, HostBytes(source));
    if (static_cast<int64_t>(source.bytes.size) != needed) {
      return absl::InvalidArgumentError(
          absl::StrCat(ToString(source.type), " takes ", needed, " bytes and came with ", source.bytes.size));
    }
  }
  auto fill = [&](uint8_t* to) {
    for (const BuildPiece& piece : shard.pieces) {
      const Source& source = build.sources[piece.source];
      CopyBox(source.type, source.byte_strides, source.bytes.data, piece.from.start, shard.type, to, piece.to.start,
              piece.to.size);
    }
  };
  if (InArena(build.out->memory_kind)) {
    return StoreShard(build.session, *build.out, shard.device, shard.type, fill);
  }
  if (IsWholeSource(shard, build.sources)) return build.sources[shard.pieces[0].source].bytes;
  PARKWAY_ASSIGN_OR_RETURN(const Buffer buffer, Allocate(DenseBytes(shard.type)));
  fill(buffer.data.get());
  return buffer.Share();
}

void HostImpl::FinishBuild(const BuildRef& build) {
  std::vector<HostShard> made;
  std::vector<ShardOf> aliases;
  for (BuildShard& shard : build->shards) {
    if (shard.alias.slot != nullptr) {
      Turn turn(*this);
      absl::StatusOr<ArrayRef> array = Shard(turn, *shard.alias.slot, shard.device);
      shard.error = array.status();
      if (array.ok()) aliases.push_back({*std::move(array), shard.device});
      continue;
    }
    absl::StatusOr<Bytes> bytes = MakeShard(*build, shard);
    shard.error = bytes.status();
    if (bytes.ok() && InArena(build->out->memory_kind)) build->blocks.emplace_back(shard.device, *bytes);
    if (bytes.ok()) made.push_back({shard.device, shard.type, *std::move(bytes)});
  }
  for (Source& source : build->sources) source.bytes = {};
  absl::StatusOr<ArrayRef> array = ArrayRef();
  if (!made.empty()) array = engine_.MakeArray(build->out->memory_kind, std::move(made));
  if (array.ok() && !aliases.empty()) array = JoinShards(*build, *std::move(array), std::move(aliases));
  EndBuild(build, std::move(array));
}

// Copied and shared shards in one array, in the order of the operation.
absl::StatusOr<ArrayRef> HostImpl::JoinShards(const Build& build, const ArrayRef& made, std::vector<ShardOf> aliases) {
  std::vector<ShardOf> shards;
  auto alias = aliases.begin();
  for (const BuildShard& shard : build.shards) {
    if (!shard.error.ok()) continue;
    if (shard.alias.slot == nullptr) {
      shards.push_back({made, shard.device});
    } else {
      const ShardOf& shared = *alias++;
      if (shared.array->type(shard.device) != shard.type) {
        return absl::InvalidArgumentError(absl::StrCat("a shard of ", ToString(shared.array->type(shard.device)),
                                                       " was to be shared as ", ToString(shard.type)));
      }
      shards.push_back(shared);
    }
  }
  return engine_.Assemble(shards);
}

void HostImpl::EndBuild(const BuildRef& build, absl::StatusOr<ArrayRef> array) {
  const std::string what = absl::StrCat("making array ", build->out->array);
  std::vector<std::pair<int, absl::Status>> faults;
  for (const BuildShard& shard : build->shards) {
    if (!shard.error.ok()) faults.emplace_back(shard.device, shard.error);
  }
  if (!faults.empty() && faults.size() == build->shards.size()) array = faults.front().second;
  ArrayRef made;
  {
    Turn turn(*this);
    for (BuildShard& shard : build->shards) {
      if (shard.alias.slot == nullptr) continue;
      Unuse(turn, *shard.alias.slot);
      turn.Drop(std::move(shard.alias.slot));
    }
    if (!array.ok()) {
      SetFailed(turn, *build->out, array.status());
      return turn.Fail(build->seq, array.status());
    }
    made = *std::move(array);
    SetLaunched(turn, *build->out, made, faults);
    build->out->blocks = std::move(build->blocks);
    if (!faults.empty()) {
      turn.Fail(build->seq, faults.front().second);
      Failure& failure = *turn.events().mutable_failures()->rbegin();
      for (const auto& [device, status] : faults) {
        ShardError& error = *failure.add_shards();
        error.set_device(LeaseDevice(device));
        *error.mutable_status() = ToProto(status);
      }
    }
    if (made == nullptr) {  // no shard is on this host
      Settle(turn, *build->out);
      return turn.Done(build->seq);
    }
  }
  engine_.WhenReady(made, [self = shared_from_this(), build, partial = !faults.empty()](const absl::Status& status) {
    Turn turn(*self);
    if (!status.ok()) self->SetFailed(turn, *build->out, status);
    if (status.ok()) self->Settle(turn, *build->out);
    if (partial) return;  // told already
    status.ok() ? turn.Done(build->seq) : turn.Fail(build->seq, status);
  });
}

// ---- Bytes out -----------------------------------------------------------------------------------------------------

void HostImpl::ViewShard(const Piece& piece, absl::AnyInvocable<void(absl::StatusOr<Bytes>)> done) {
  absl::StatusOr<ArrayRef> array;
  {
    Turn turn(*this);
    array = Shard(turn, *piece.slot, piece.device);
  }
  if (!array.ok()) return done(array.status());
  engine_.View(
      *array, piece.device,
      [self = shared_from_this(), slot = piece.slot, done = std::move(done)](absl::StatusOr<Bytes> bytes) mutable {
        {
          Turn turn(*self);
          if (slot->state == Slot::State::kFailed) bytes = slot->error;
        }
        done(std::move(bytes));
      });
}

void HostImpl::HandleExport(const Op& op) {
  const Export& message = op.export_();
  const uint64_t transfer = message.transfer();
  Turn turn(*this);
  absl::StatusOr<Piece> piece = FindShard(turn, message.shard());
  if (piece.ok() && !exports_.insert(transfer).second) {
    return turn.Fail(op.seq(), absl::InvalidArgumentError(
                                   absl::StrCat("operation ", op.seq(), " exports under an id that is in use")));
  }
  if (!piece.ok()) {
    const absl::Status error = Annotate(piece.status(), "exporting a shard");
    turn.Fail(op.seq(), error);
    return turn.Then([this, self = shared_from_this(), transfer, error] { bulk_.Fail(transfer, error); });
  }
  ++piece->slot->uses;
  WhenLaunched(turn, *piece->slot, [self = shared_from_this(), piece = *piece, message, seq = op.seq()] {
    self->ViewShard(piece, [self, piece, message, seq](absl::StatusOr<Bytes> bytes) {
      self->threads_.pool->Post([self, piece, message, seq, bytes = std::move(bytes)]() mutable {
        if (bytes.ok()) bytes = self->CopyForExport(piece, message, *bytes);
        self->FinishExport(seq, message.transfer(), std::move(bytes));
      });
    });
    Turn turn(*self);
    self->Unuse(turn, *piece.slot);
  });
}

// The part that was asked for, in memory that a puller on this machine can map.
absl::StatusOr<Bytes> HostImpl::CopyForExport(const Piece& piece, const Export& message, const Bytes& bytes) {
  ArrayRef array;
  {
    Turn turn(*this);
    PARKWAY_ASSIGN_OR_RETURN(array, Shard(turn, *piece.slot, piece.device));
  }
  const Type& type = array->type(piece.device);
  PARKWAY_ASSIGN_OR_RETURN(const Box box, BoxFromProto(message.has_region(), message.region(), type));
  const bool whole = box == WholeOf(type);
  if (whole && !bytes.local_path.empty()) return bytes;
  const Type part{type.dtype, box.size};
  PARKWAY_ASSIGN_OR_RETURN(const std::shared_ptr<Blob> blob, Blob::CreateForOverwrite(DenseBytes(part)));
  if (whole) {
    std::memcpy(blob->data(), bytes.data, bytes.size);
  } else {
    CopyBox(type, {}, bytes.data, box.start, part, blob->data(), std::vector<int64_t>(box.size.size(), 0), box.size);
  }
  return Blob::Share(blob);
}

void HostImpl::FinishExport(uint64_t seq, uint64_t transfer, absl::StatusOr<Bytes> bytes) {
  bool wanted;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    wanted = exports_.contains(transfer);
  }
  if (wanted && bytes.ok()) bulk_.Fulfil(transfer, *bytes);
  if (wanted && !bytes.ok()) bulk_.Fail(transfer, bytes.status());
  Turn turn(*this);
  // Released while it was fulfilled.
  if (wanted && !exports_.contains(transfer))
    turn.Then([self = shared_from_this(), transfer] { self->bulk_.Drop(transfer); });
  if (bytes.ok()) {
    turn.Done(seq);
  } else {
    turn.Fail(seq, bytes.status());
  }
}

void HostImpl::HandleRelease(const Op& op) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    for (uint64_t transfer : op.release().transfers()) exports_.erase(transfer);
  }
  for (uint64_t transfer : op.release().transfers()) bulk_.Drop(transfer);
}

void HostImpl::HandleRead(const Op& op) {
  const uint64_t read = op.read().read();
  Turn turn(*this);
  absl::StatusOr<Piece> piece = FindShard(turn, op.read().shard());
  if (!piece.ok()) {
    ReadResult& result = *turn.events().add_reads();
    result.set_read(read);
    *result.mutable_status() = ToProto(Annotate(piece.status(), "reading a shard"));
    return;
  }
  ++piece->slot->uses;
  const bool keep = op.read().keep();
  WhenLaunched(turn, *piece->slot, [self = shared_from_this(), piece = *piece, read, keep, session = op.session()] {
    self->ViewShard(piece, [self, piece, read, keep, session](absl::StatusOr<Bytes> bytes) {
      keep ? self->AnswerKeep(session, read, piece, std::move(bytes)) : self->AnswerRead(read, std::move(bytes));
    });
    Turn turn(*self);
    self->Unuse(turn, *piece.slot);
  });
}

void HostImpl::AnswerRead(uint64_t read, absl::StatusOr<Bytes> bytes) {
  if (bytes.ok() && bytes->size > limits::kInlineReadBytes) {
    threads_.pool->Post([self = shared_from_this(), read, bytes = *std::move(bytes)] { self->OfferRead(read, bytes); });
    return;
  }
  Turn turn(*this);
  ReadResult& result = *turn.events().add_reads();
  result.set_read(read);
  *result.mutable_status() = ToProto(bytes.status());
  if (bytes.ok()) result.set_inline_bytes(bytes->data, bytes->size);
}

void HostImpl::AnswerKeep(uint64_t session, uint64_t read, const Piece& piece, absl::StatusOr<Bytes> bytes) {
  threads_.pool->Post([self = shared_from_this(), session, read, piece, bytes = std::move(bytes)] {
    const absl::Status kept = bytes.ok() ? self->KeepShard(session, piece, *bytes) : bytes.status();
    self->AnswerRead(read, kept.ok() ? absl::StatusOr<Bytes>(Bytes()) : kept);
  });
}

void HostImpl::OfferRead(uint64_t read, const Bytes& bytes) {
  absl::StatusOr<Bytes> offered = bytes;
  if (bytes.local_path.empty()) {
    absl::StatusOr<std::shared_ptr<Blob>> blob = Blob::CreateForOverwrite(bytes.size);
    if (blob.ok()) std::memcpy((*blob)->data(), bytes.data, bytes.size);
    offered = blob.ok() ? absl::StatusOr<Bytes>(Blob::Share(*blob)) : blob.status();
  }
  ReadResult result;
  result.set_read(read);
  *result.mutable_status() = ToProto(offered.status());
  if (offered.ok()) *result.mutable_transfer() = bulk_.Offer(*std::move(offered));
  Turn turn(*this);
  *turn.events().add_reads() = std::move(result);
}

}  // namespace parkway::engine
