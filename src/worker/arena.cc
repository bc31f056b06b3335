#include "worker/arena.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include <cerrno>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/limits.h"
#include "base/machine.h"
#include "base/status.h"
#include "base/status_wire.h"
#include "glog/logging.h"
#include "proto/parkway/arena.pb.h"

namespace parkway::worker {
namespace {

absl::StatusOr<Descriptor> MakeMemory(uint64_t size) {
  auto fail = [size](int error) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "can't make a block of ", size, " bytes of host memory: ", absl::ErrnoToStatus(error, "").message()));
  };
  if (size > static_cast<uint64_t>(AvailableMemoryBytes())) return fail(ENOMEM);
  Descriptor memory(memfd_create("parkway-arena", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (memory.get() < 0 || ftruncate(memory.get(), static_cast<off_t>(size)) != 0 ||
      fcntl(memory.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) != 0) {
    return fail(errno);
  }
  return memory;
}

}  // namespace

struct Arena::Block {
  ArenaBlock what;
  Descriptor memory;
  bool sealed = false;
};

Arena::~Arena() { EndConnection(); }

void Arena::EndConnection() {
  if (!thread_.joinable()) return;
  shutdown(socket_.get(), SHUT_RDWR);  // what the engine sent before it died is still read
  thread_.join();
  socket_.Reset();
}

absl::StatusOr<Descriptor> Arena::Serve(uint64_t lease) {
  EndConnection();
  if (lease != std::exchange(lease_, lease)) Clear();
  PARKWAY_ASSIGN_OR_RETURN(auto ends, DatagramPair());
  socket_ = std::move(ends.first);
  thread_ = std::thread([this, socket = socket_.get()] { Run(socket); });
  return std::move(ends.second);
}

void Arena::Clear() {
  EndConnection();
  std::lock_guard lock(mutex_);
  blocks_.clear();
  sessions_.clear();
  bytes_ = 0;
}

Arena::Stats Arena::stats() const {
  std::lock_guard lock(mutex_);
  return {.blocks = blocks_.size(), .bytes = bytes_};
}

void Arena::Run(int socket) {
  while (true) {
    absl::StatusOr<Datagram> datagram = ReceiveDatagram(socket);
    ArenaRequest request;
    if (datagram.ok() && !request.ParseFromString(datagram->message)) {
      datagram = absl::InvalidArgumentError("a datagram that is no request");
    }
    if (datagram.ok() && Handle(socket, request)) continue;
    if (absl::IsInvalidArgument(datagram.status())) {
      LOG(ERROR) << "The engine's connection with the arena ends: " << datagram.status().message();
    }
    break;
  }
  shutdown(socket, SHUT_RDWR);
  ReleaseUnsealed();
}

bool Arena::Handle(int socket, const ArenaRequest& request) {
  ArenaReply reply;
  std::vector<BlockRef> blocks;  // they keep their descriptors open
  absl::Status status;
  switch (request.kind_case()) {
    case ArenaRequest::kAllocate: {
      absl::StatusOr<BlockRef> block = Allocate(request.allocate());
      status = block.status();
      if (block.ok()) blocks.push_back(*std::move(block));
      break;
    }
    case ArenaRequest::kSeal:
      status = Seal(request.seal());
      break;
    case ArenaRequest::kSealedAfter:
      blocks = SealedAfter(request.sealed_after());
      break;
    case ArenaRequest::kRelease:
      for (uint64_t id : request.release().blocks()) Release(id);
      return true;
    default:
      status = absl::InvalidArgumentError("a request that this arena doesn't know");
  }
  *reply.mutable_status() = ToProto(status);
  std::vector<int> descriptors;
  for (const BlockRef& block : blocks) {
    *reply.add_blocks() = block->what;
    descriptors.push_back(block->memory.get());
  }
  return SendDatagram(socket, reply.SerializeAsString(), descriptors).ok();
}

absl::Status Arena::CheckRoom(const ArenaBlock& wanted) const {
  const auto it = sessions_.find(wanted.session());
  const Session session = it != sessions_.end() ? it->second : Session();
  const auto room = static_cast<uint64_t>(session_bytes_ - session.bytes);
  if (!wanted.kept() && wanted.size() > room) {
    return absl::ResourceExhaustedError(
        absl::StrCat("session ", wanted.session(), " has ", session.bytes, " bytes of host memory ('",
                     wanted.memory_kind(), "') on this host and asked for ", wanted.size(), " more; its limit is ",
                     session_bytes_, " bytes. Delete arrays, or start the worker with a greater --arena_bytes"));
  }
  if ((!wanted.kept() && session.blocks >= limits::kArenaBlocksPerSession) || blocks_.size() >= limits::kArenaBlocks) {
    return absl::ResourceExhaustedError(
        absl::StrCat("session ", wanted.session(), " has ", session.blocks, " arrays of ", session.bytes,
                     " bytes in host memory ('", wanted.memory_kind(), "') on this host, all sessions ", blocks_.size(),
                     "; there can be ", limits::kArenaBlocksPerSession, " and ", limits::kArenaBlocks,
                     ". Delete arrays, or make fewer and larger ones"));
  }
  return absl::OkStatus();
}

absl::StatusOr<Arena::BlockRef> Arena::Allocate(const ArenaBlock& wanted) {
  std::lock_guard lock(mutex_);
  PARKWAY_RETURN_IF_ERROR(CheckRoom(wanted));
  auto block = std::make_shared<Block>();
  PARKWAY_ASSIGN_OR_RETURN(block->memory, MakeMemory(wanted.size()));
  block->what = wanted;
  block->what.set_id(next_id_++);
  if (!wanted.kept()) {
    Session& session = sessions_[wanted.session()];
    session.bytes += static_cast<int64_t>(wanted.size());
    ++session.blocks;
  }
  bytes_ += static_cast<int64_t>(wanted.size());
  blocks_.emplace(block->what.id(), block);
  return block;
}

absl::Status Arena::Seal(uint64_t id) {
  std::lock_guard lock(mutex_);
  auto it = blocks_.find(id);
  if (it == blocks_.end()) return absl::InvalidArgumentError(absl::StrCat("there is no block ", id));
  if (fcntl(it->second->memory.get(), F_ADD_SEALS, F_SEAL_WRITE) != 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("block ", id, " can't be sealed: ", absl::ErrnoToStatus(errno, "").message()));
  }
  it->second->sealed = true;
  return absl::OkStatus();
}

std::vector<Arena::BlockRef> Arena::SealedAfter(uint64_t id) const {
  std::lock_guard lock(mutex_);
  std::vector<BlockRef> found;
  for (auto it = blocks_.upper_bound(id); it != blocks_.end(); ++it) {
    if (!it->second->sealed) continue;
    found.push_back(it->second);
    if (found.size() == limits::kArenaBlocksPerMessage) break;
  }
  return found;
}

void Arena::Release(uint64_t id) {
  std::lock_guard lock(mutex_);
  if (auto it = blocks_.find(id); it != blocks_.end()) ReleaseLocked(it);
}

void Arena::ReleaseUnsealed() {
  std::lock_guard lock(mutex_);
  for (auto it = blocks_.begin(); it != blocks_.end();) {
    const auto here = it++;
    if (!here->second->sealed) ReleaseLocked(here);
  }
}

void Arena::ReleaseLocked(std::map<uint64_t, BlockRef>::iterator it) {
  const ArenaBlock& what = it->second->what;
  if (auto session = sessions_.find(what.session()); !what.kept()) {
    session->second.bytes -= static_cast<int64_t>(what.size());
    if (--session->second.blocks == 0) sessions_.erase(session);
  }
  bytes_ -= static_cast<int64_t>(what.size());
  blocks_.erase(it);
}

}  // namespace parkway::worker
