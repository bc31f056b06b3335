// For tests of EngineHost: a bulk server in memory, one that records what a host says, and short ways to write
// operations.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/limits.h"
#include "base/status_wire.h"
#include "engine/host.h"
#include "engine/host_runner.h"
#include "engine/sim/sim_engine.h"
#include "fabric/bulk.h"

namespace parkway::engine::testing {

// Transfers between the hosts of one test: a pull waits until somebody fulfils it.
struct BulkSpace {
  struct Entry {
    std::optional<absl::StatusOr<Bytes>> bytes;
    std::vector<fabric::Bulk::Done> waiters;
  };
  std::mutex mutex;
  std::map<uint64_t, Entry> entries;
  uint64_t next = 1'000'000;

  size_t held() {
    std::lock_guard<std::mutex> lock(mutex);
    size_t n = 0;
    for (auto& [id, entry] : entries) n += entry.bytes.has_value() ? 1 : 0;
    return n;
  }
};

class FakeBulk : public fabric::Bulk {
 public:
  explicit FakeBulk(std::shared_ptr<BulkSpace> space) : space_(std::move(space)) {}
  std::string endpoint() const override { return "test:0"; }
  Transfer Offer(Bytes bytes) override {
    Transfer transfer;
    transfer.set_size(bytes.size);
    {
      std::lock_guard<std::mutex> lock(space_->mutex);
      transfer.set_id(space_->next++);
    }
    Set(transfer.id(), std::move(bytes));
    return transfer;
  }
  void Fulfil(uint64_t id, Bytes bytes) override { Set(id, std::move(bytes)); }
  void Fail(uint64_t id, absl::Status why) override { Set(id, std::move(why)); }
  void Drop(uint64_t id) override {
    std::lock_guard<std::mutex> lock(space_->mutex);
    space_->entries.erase(id);
  }
  void Fetch(const Transfer& transfer, Done done) override {
    absl::StatusOr<Bytes> bytes;
    {
      std::lock_guard<std::mutex> lock(space_->mutex);
      BulkSpace::Entry& entry = space_->entries[transfer.id()];
      if (!entry.bytes.has_value()) {
        entry.waiters.push_back(std::move(done));
        return;
      }
      bytes = *entry.bytes;
    }
    done(std::move(bytes));
  }

 private:
  void Set(uint64_t id, absl::StatusOr<Bytes> bytes) {
    std::vector<Done> waiters;
    {
      std::lock_guard<std::mutex> lock(space_->mutex);
      space_->entries[id].bytes = bytes;
      waiters.swap(space_->entries[id].waiters);
    }
    for (Done& waiter : waiters) waiter(bytes);
  }
  const std::shared_ptr<BulkSpace> space_;
};

// All that a host has said.
class Record {
  template <typename F>
  auto Locked(F f) const {
    std::lock_guard<std::mutex> lock(mutex_);
    return f();
  }

 public:
  void Add(const std::string& frame) {
    Events events;
    const bool parsed = events.ParseFromString(frame);
    std::lock_guard<std::mutex> lock(mutex_);
    broken_ |= !parsed;
    messages_.push_back(events);
    for (uint64_t seq : events.done()) ++ended_[seq];
    for (const Failure& failure : events.failures()) {
      ++ended_[failure.seq()];
      failures_[failure.seq()] = failure;
    }
    for (const ReadResult& read : events.reads()) reads_[read.read()] = read;
    for (const Loaded& loaded : events.loaded()) loaded_[loaded.executable()] = FromProto(loaded.status());
    for (const ContextState& context : events.contexts()) contexts_[context.context()] = context;
    for (const KeyValue& key : events.key_values()) keys_.push_back(key);
  }

  // How often the operation was answered: 1 in a sound host.
  int ended(uint64_t seq) const {
    return Locked([&] { return ended_.contains(seq) ? ended_.at(seq) : 0; });
  }
  bool done(uint64_t seq) const {
    return ended(seq) == 1 && Locked([&] { return !failures_.contains(seq); });
  }
  absl::Status failure(uint64_t seq) const {
    return Locked([&] { return failures_.contains(seq) ? FromProto(failures_.at(seq).status()) : absl::OkStatus(); });
  }
  Failure failure_event(uint64_t seq) const {
    return Locked([&] { return failures_.at(seq); });
  }
  bool was_read(uint64_t read) const {
    return Locked([&] { return reads_.contains(read); });
  }
  ReadResult read(uint64_t read) const {
    return Locked([&] { return reads_.at(read); });
  }
  bool was_loaded(uint64_t id) const {
    return Locked([&] { return loaded_.contains(id); });
  }
  absl::Status loaded(uint64_t id) const {
    return Locked([&] { return loaded_.at(id); });
  }
  bool told(uint64_t context) const {
    return Locked([&] { return contexts_.contains(context); });
  }
  ContextState context(uint64_t id) const {
    return Locked([&] { return contexts_.at(id); });
  }
  std::vector<KeyValue> keys() const {
    return Locked([&] { return keys_; });
  }
  std::vector<Events> messages() const {
    return Locked([&] { return messages_; });
  }
  bool broken() const {
    return Locked([&] { return broken_; });
  }

 private:
  mutable std::mutex mutex_;
  std::vector<Events> messages_;
  std::map<uint64_t, int> ended_;
  std::map<uint64_t, Failure> failures_;
  std::map<uint64_t, ReadResult> reads_;
  std::map<uint64_t, absl::Status> loaded_;
  std::map<uint64_t, ContextState> contexts_;
  std::vector<KeyValue> keys_;
  bool broken_ = false;
};

// Hosts of one lease with sim engines in one thread. Host h has the lease devices 10 * h, 10 * h + 1, ...
class Cluster {
 public:
  struct Node {
    std::unique_ptr<SimEngine> engine;
    std::unique_ptr<FakeBulk> bulk;
    std::unique_ptr<Runner> pool;
    Record record;
    std::unique_ptr<EngineHost> host;
  };

  explicit Cluster(int hosts, SimOptions options = {.devices = 2}, Arena* arena = nullptr) {
    for (int i = 0; i < hosts; ++i) {
      auto node = std::make_unique<Node>();
      node->engine = SimEngine::Create(options, executor, world);
      node->bulk = std::make_unique<FakeBulk>(space);
      node->pool = MakeSimRunner(executor);
      node->host =
          std::make_unique<EngineHost>(HostOptions{.incarnation = Incarnation(i), .machine = "test", .arena = arena},
                                       *node->engine, *node->bulk, SimThreads(executor, *node->pool));
      ProxyHello hello;
      hello.set_host(i);
      for (int d = 0; d < options.devices; ++d) hello.add_devices(10 * i + d);
      const absl::Status status =
          node->host->Start(hello, [node = node.get()](const fabric::Frame& frame) { node->record.Add(*frame); });
      if (!status.ok()) std::abort();
      nodes.push_back(std::move(node));
    }
  }
  static uint64_t Incarnation(int host) { return 100 + static_cast<uint64_t>(host); }

  Node& operator[](int host) { return *nodes[host]; }
  // Hands the operation to a host, in order. Returns its seq.
  uint64_t Send(int host, Op op) {
    if (op.seq() == 0) op.set_seq(++seq);
    if (!nodes[host]->host->OnMessage(op.SerializeAsString()).ok()) std::abort();
    return op.seq();
  }
  // Until nothing moves; delayed events come out too.
  void Settle() {
    executor.RunUntilIdle();
    executor.Advance(2 * limits::kLazyEventDelay);
    executor.RunUntilIdle();
  }

  SimExecutor executor;
  std::shared_ptr<SimWorld> world = std::make_shared<SimWorld>();
  std::shared_ptr<BulkSpace> space = std::make_shared<BulkSpace>();
  std::vector<std::unique_ptr<Node>> nodes;
  uint64_t seq = 0;
};

// ---- Operations ----------------------------------------------------------------------------------------------------

inline void SetType(TypeProto& proto, const Type& type) {
  proto.set_dtype(static_cast<int>(type.dtype));
  proto.mutable_dims()->Clear();
  for (int64_t dim : type.dims) proto.add_dims(dim);
}
inline void SetRegion(Region& region, const std::vector<int64_t>& start, const std::vector<int64_t>& size) {
  for (int64_t x : start) region.add_start(x);
  for (int64_t x : size) region.add_size(x);
}
inline ShardRef MakeRef(uint64_t array, int device) {
  ShardRef ref;
  ref.set_array(array);
  ref.set_device(device);
  return ref;
}
// One source, a shard of all of it on each device.
inline Op MakePut(uint64_t array, const Type& type, const std::string& bytes, const std::vector<int>& devices) {
  Op op;
  Put& put = *op.mutable_put();
  put.set_array(array);
  HostSource& source = *put.add_sources();
  SetType(*source.mutable_type(), type);
  source.set_inline_bytes(bytes);
  for (int device : devices) {
    PutShard& shard = *put.add_shards();
    shard.set_device(device);
    SetType(*shard.mutable_type(), type);
  }
  return op;
}
inline Op MakeRead(uint64_t array, int device, uint64_t read) {
  Op op;
  *op.mutable_read()->mutable_shard() = MakeRef(array, device);
  op.mutable_read()->set_read(read);
  return op;
}
inline Op MakeDelete(const std::vector<uint64_t>& arrays) {
  Op op;
  op.mutable_delete_();
  for (uint64_t array : arrays) op.mutable_delete_()->add_arrays(array);
  return op;
}
inline Op MakeLoad(uint64_t executable, const std::string& name, const std::vector<int>& devices,
                   const std::vector<Type>& parameters, const std::vector<Type>& outputs, uint64_t context = 0) {
  Op op;
  op.set_context(context);
  LoadExecutable& load = *op.mutable_load();
  load.set_executable(executable);
  load.set_program("hash of " + name);
  load.set_name(name);
  load.set_inline_bytes("program " + name);
  for (int device : devices) load.add_devices(device);
  for (const Type& type : parameters) SetType(*load.add_parameters(), type);
  for (const Type& type : outputs) SetType(*load.add_outputs(), type);
  return op;
}
inline Op MakeLaunch(uint64_t executable, const std::vector<uint64_t>& arguments, const std::vector<uint64_t>& outputs,
                     uint64_t context = 0, const std::vector<int>& donated = {}) {
  Op op;
  op.set_context(context);
  Launch& launch = *op.mutable_launch();
  launch.set_executable(executable);
  for (uint64_t array : arguments) launch.add_arguments()->set_array(array);
  for (uint64_t array : outputs) launch.add_outputs(array);
  for (int index : donated) launch.add_donated(index);
  return op;
}
inline Op MakeOpen(uint64_t context, const std::vector<int>& hosts, int devices = 2) {
  Op op;
  op.set_context(context);
  op.mutable_open_context()->set_context(context);
  for (int host : hosts) {
    parkway::ContextMember& member = *op.mutable_open_context()->add_members();
    member.set_host(host);
    member.set_incarnation(Cluster::Incarnation(host));
    for (int d = 0; d < devices; ++d) member.add_devices(10 * host + d);
  }
  return op;
}
inline Op MakeClose(uint64_t context, const absl::Status& cause) {
  Op op;
  op.set_context(context);
  op.mutable_close_context()->set_context(context);
  *op.mutable_close_context()->mutable_cause() = ToProto(cause);
  return op;
}

}  // namespace parkway::engine::testing
