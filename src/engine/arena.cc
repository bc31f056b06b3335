#include "engine/arena.h"

#include <poll.h>
#include <sys/mman.h>

#include <cerrno>
#include <mutex>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/limits.h"
#include "base/status.h"
#include "base/status_wire.h"
#include "engine/host_wire.h"
#include "proto/parkway/arena.pb.h"

namespace parkway::engine {
namespace {

constexpr int kReleasesPerMessage = 1024;

// The socket and the protocol on it. Blocks hold it, since each says when it goes.
class Connection {
 public:
  explicit Connection(Descriptor socket) : socket_(std::move(socket)) {}

  // The answer and its descriptors, one for each block in it.
  absl::StatusOr<std::pair<ArenaReply, std::vector<Descriptor>>> Call(const ArenaRequest& request) {
    std::lock_guard lock(mutex_);
    PARKWAY_RETURN_IF_ERROR(broken_);
    SendReleases();
    absl::StatusOr<Datagram> answer = Exchange(request);
    ArenaReply reply;
    if (answer.ok() && (!reply.ParseFromString(answer->message) ||
                        reply.blocks_size() != static_cast<int>(answer->descriptors.size()))) {
      answer = absl::UnavailableError("its answer is none");
    }
    if (!answer.ok()) {  // what comes late would be taken for the answer to the next question
      broken_ = absl::UnavailableError(absl::StrCat(
          "the worker of this host, which keeps its host memory, gave no answer: ", answer.status().message()));
      return broken_;
    }
    PARKWAY_RETURN_IF_ERROR(FromProto(reply.status()));
    return std::make_pair(std::move(reply), std::move(answer->descriptors));
  }

  // Never blocks: bytes are dropped by threads that hold locks.
  void Release(uint64_t block) {
    {
      std::lock_guard lock(releases_mutex_);
      releases_.push_back(block);
    }
    SendReleases();
  }

 private:
  absl::StatusOr<Datagram> Exchange(const ArenaRequest& request) {
    PARKWAY_RETURN_IF_ERROR(SendDatagram(socket_.get(), request.SerializeAsString()));
    pollfd waits{socket_.get(), POLLIN, 0};
    int ready;
    do {
      ready = poll(&waits, 1, static_cast<int>(absl::ToInt64Milliseconds(limits::kArenaAnswer)));
    } while (ready < 0 && errno == EINTR);
    if (ready <= 0) {
      return absl::UnavailableError(absl::StrCat("nothing in ", absl::FormatDuration(limits::kArenaAnswer)));
    }
    return ReceiveDatagram(socket_.get());
  }

  // What finds no room goes with the next one.
  void SendReleases() {
    std::lock_guard lock(releases_mutex_);
    while (!releases_.empty()) {
      const size_t count = std::min<size_t>(releases_.size(), kReleasesPerMessage);
      ArenaRequest request;
      request.mutable_release()->mutable_blocks()->Add(releases_.end() - static_cast<int64_t>(count), releases_.end());
      if (!SendDatagram(socket_.get(), request.SerializeAsString(), {}, /*wait=*/false).ok()) return;
      releases_.resize(releases_.size() - count);
    }
  }

  const Descriptor socket_;
  std::mutex mutex_;  // one question at a time
  absl::Status broken_;
  std::mutex releases_mutex_;
  std::vector<uint64_t> releases_;
};

// The sealed block, mapped read-only; it is released when the last of its bytes go.
absl::StatusOr<Bytes> Hold(std::shared_ptr<Connection> connection, uint64_t id, Descriptor memory, size_t size) {
  struct Held {
    ~Held() {
      mapped = {};
      connection->Release(id);
    }
    std::shared_ptr<Connection> connection;
    uint64_t id;
    Bytes mapped;
  };
  auto held = std::make_shared<Held>();
  held->connection = std::move(connection);
  held->id = id;
  PARKWAY_ASSIGN_OR_RETURN(held->mapped, Blob::MapDescriptor(memory.get(), size));
  Bytes bytes = held->mapped;
  bytes.owner = std::move(held);
  return bytes;
}

class WorkerArena : public Arena {
 public:
  explicit WorkerArena(Descriptor socket) : connection_(std::make_shared<Connection>(std::move(socket))) {}

  absl::StatusOr<Bytes> Store(const ArenaShard& shard, size_t size,
                              absl::FunctionRef<void(uint8_t* to)> write) override {
    ArenaRequest allocate;
    ArenaBlock& block = *allocate.mutable_allocate();
    block.set_session(shard.session);
    block.set_array(shard.array);
    block.set_device(shard.device);
    block.set_memory_kind(shard.memory_kind);
    block.mutable_type()->set_dtype(static_cast<int>(shard.type.dtype));
    block.mutable_type()->mutable_dims()->Add(shard.type.dims.begin(), shard.type.dims.end());
    block.set_size(size);
    block.set_kept(shard.kept);
    PARKWAY_ASSIGN_OR_RETURN(auto answer, connection_->Call(allocate));
    auto& [reply, descriptors] = answer;
    if (reply.blocks_size() != 1) return absl::UnavailableError("the worker gave no block of host memory");
    const uint64_t id = reply.blocks(0).id();
    if (absl::Status written = Write(descriptors[0].get(), size, write); !written.ok()) {
      connection_->Release(id);
      return written;
    }
    ArenaRequest seal;
    seal.set_seal(id);
    if (absl::StatusOr<std::pair<ArenaReply, std::vector<Descriptor>>> sealed = connection_->Call(seal); !sealed.ok()) {
      connection_->Release(id);
      return sealed.status();
    }
    return Hold(connection_, id, std::move(descriptors[0]), size);
  }

  absl::StatusOr<std::vector<std::pair<ArenaShard, Bytes>>> TakeOver() override {
    std::vector<std::pair<ArenaShard, Bytes>> found;
    ArenaRequest request;
    request.set_sealed_after(0);
    while (true) {
      PARKWAY_ASSIGN_OR_RETURN(auto answer, connection_->Call(request));
      auto& [reply, descriptors] = answer;
      if (reply.blocks().empty()) return found;
      for (int i = 0; i < reply.blocks_size(); ++i) {
        const ArenaBlock& block = reply.blocks(i);
        request.set_sealed_after(block.id());
        PARKWAY_ASSIGN_OR_RETURN(Bytes bytes, Hold(connection_, block.id(), std::move(descriptors[i]), block.size()));
        PARKWAY_ASSIGN_OR_RETURN(Type type, TypeFromProto(block.type()));
        found.emplace_back(ArenaShard{block.session(), block.array(), block.device(), block.memory_kind(),
                                      std::move(type), block.kept()},
                           std::move(bytes));
      }
    }
  }

 private:
  // Unmapped afterwards: what somebody may write to can't be sealed.
  static absl::Status Write(int memory, size_t size, absl::FunctionRef<void(uint8_t* to)> write) {
    if (size == 0) return absl::OkStatus();
    void* mapped = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0);
    if (mapped == MAP_FAILED) {
      return absl::ResourceExhaustedError(absl::StrCat(
          "can't map a block of ", size, " bytes of host memory: ", absl::ErrnoToStatus(errno, "").message()));
    }
    write(static_cast<uint8_t*>(mapped));
    munmap(mapped, size);
    return absl::OkStatus();
  }

  const std::shared_ptr<Connection> connection_;
};

}  // namespace

std::unique_ptr<Arena> ConnectArena(Descriptor socket) { return std::make_unique<WorkerArena>(std::move(socket)); }

}  // namespace parkway::engine
