// A core under a simulated clock with scripted engines and a compiler that knows a few programs: what core_test and the
// fuzzers drive. Engines record what they are told and end it when the test says so.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/executor.h"
#include "proto/ifrt/xla_data.pb.h"
#include "runtime/core.h"

namespace parkway::runtime {

class ScriptedEngine {
 public:
  std::vector<Op> ops;      // in the one order
  std::vector<Op> control;  // beside it
  bool up = false;
  uint64_t incarnation = 0;

  std::vector<const Op*> Of(Op::KindCase kind) const {
    std::vector<const Op*> found;
    for (const Op& op : ops) {
      if (op.kind_case() == kind) found.push_back(&op);
    }
    return found;
  }
};

class ScriptedLink : public EngineLink {
 public:
  explicit ScriptedLink(ScriptedEngine* engine) : engine_(engine) {}
  void Send(fabric::Frame operation) override { engine_->ops.emplace_back().ParseFromString(*operation); }
  void SendControl(fabric::Frame operation) override { engine_->control.emplace_back().ParseFromString(*operation); }

 private:
  ScriptedEngine* engine_;
};

class MemoryTransfers : public Transfers {
 public:
  Transfer Offer(Bytes bytes) override {
    Transfer transfer;
    transfer.set_id(++last_);
    transfer.set_size(bytes.size);
    held[last_] = std::move(bytes);
    return transfer;
  }
  void Drop(uint64_t id) override { held.erase(id); }
  void Fetch(const Transfer& transfer, absl::AnyInvocable<void(absl::StatusOr<Bytes>)> done) override {
    auto it = held.find(transfer.id());
    if (it == held.end()) {
      done(absl::AbortedError("nobody offers these bytes"));
    } else {
      done(it->second);
    }
  }
  std::map<uint64_t, Bytes> held;

 private:
  uint64_t last_ = 0;
};

// "Programs" are names of types: "f32[8] -> f32[8]" is not parsed; tests register what each gives.
class TableCompiler : public Compiler {
 public:
  void Compile(uint64_t, CompileJob job, absl::AnyInvocable<void(absl::StatusOr<CompiledProgram>)> done) override {
    auto it = programs.find(job.program());
    if (it == programs.end()) {
      done(absl::InvalidArgumentError("no such program"));
    } else if (hold) {
      held.emplace_back(job.job(), [program = it->second, done = std::move(done)]() mutable { done(program); });
    } else {
      done(it->second);
    }
  }
  void Cancel(uint64_t job) override { cancelled.push_back(job); }
  std::map<std::string, CompiledProgram> programs;
  bool hold = false;
  std::vector<std::pair<uint64_t, absl::AnyInvocable<void()>>> held;
  std::vector<uint64_t> cancelled;
};

struct CoreFixture {
  SimExecutor executor;
  TableCompiler compiler;
  MemoryTransfers transfers;
  std::vector<ScriptedEngine> engines;
  std::vector<std::string> restarts;
  std::unique_ptr<Core> core;
  uint64_t random = 1000;
  int64_t memory_bytes = 0;  // limit of the engines that come up

  explicit CoreFixture(std::vector<SliceSpec> slices) {
    CoreOptions options;
    options.executor = &executor;
    options.compiler = &compiler;
    options.transfers = &transfers;
    options.topology = Topology(std::move(slices));
    options.random = [this] { return ++random; };
    options.restart_engine = [this](int host, uint64_t, std::string why) {
      restarts.push_back(std::to_string(host) + ": " + why);
    };
    engines.resize(options.topology.hosts().size());
    core = Core::Create(std::move(options));
  }

  void Up(int host, const std::vector<ShardRef>& kept = {}) {
    EngineHello hello;
    hello.add_arena_kinds("pinned_host");
    for (const ShardRef& shard : kept) *hello.add_kept() = shard;
    engines[host].incarnation = ++random;
    engines[host].up = true;
    engines[host].ops.clear();
    engines[host].control.clear();
    hello.set_incarnation(engines[host].incarnation);
    hello.set_devices(static_cast<int>(core->topology().hosts()[host].devices.size()));
    hello.set_memory_bytes(memory_bytes);
    hello.set_bulk_endpoint("host" + std::to_string(host) + ":1");
    core->OnEngineUp(host, hello, std::make_unique<ScriptedLink>(&engines[host]));
    executor.RunUntilIdle();
  }
  void UpAll() {
    for (size_t host = 0; host < engines.size(); ++host) Up(static_cast<int>(host));
  }
  void Down(int host, std::string cause, bool returns = false) {
    engines[host].up = false;
    core->OnEngineDown(host, engines[host].incarnation, absl::UnavailableError(cause), returns);
    executor.RunUntilIdle();
  }
  void Send(int host, const Events& events) {
    core->OnEvents(host, engines[host].incarnation, events);
    executor.RunUntilIdle();
  }
  void Done(int host, uint64_t seq) {
    Events events;
    events.add_done(seq);
    Send(host, events);
  }
  void Fail(int host, uint64_t seq, absl::StatusCode code, std::string text, bool peer = false) {
    Events events;
    Failure* failure = events.add_failures();
    failure->set_seq(seq);
    failure->set_peer(peer);
    failure->mutable_status()->set_code(static_cast<int>(code));
    failure->mutable_status()->set_message(std::move(text));
    Send(host, events);
  }
  // Ends everything that a host was told so far, contexts included.
  void DoneAll(int host) {
    Events events;
    for (const Op& op : engines[host].control) {
      if (op.kind_case() != Op::kOpenContext) continue;
      ContextState* state = events.add_contexts();
      state->set_context(op.context());
      state->set_open(true);
    }
    for (const Op& op : engines[host].ops) events.add_done(op.seq());
    Send(host, events);
  }

  static CompiledProgram MakeProgram(const std::string& name, int parameters, int outputs, std::vector<int64_t> dims,
                                     int num_devices, bool tiled) {
    CompiledProgram program;
    program.set_name(name);
    program.set_executable("executable of " + name);
    program.set_fingerprint("fingerprint of " + name);
    auto type = [&](TypeProto* proto, bool shard) {
      proto->set_dtype(static_cast<int>(ifrt::DType::kF32));
      for (size_t i = 0; i < dims.size(); ++i) {
        proto->add_dims(shard && tiled && i == 0 ? dims[i] / num_devices : dims[i]);
      }
    };
    xla::OpSharding sharding;
    if (tiled) {
      sharding.set_type(xla::OpSharding::OTHER);
      sharding.add_tile_assignment_dimensions(num_devices);
      for (size_t i = 1; i < dims.size(); ++i) sharding.add_tile_assignment_dimensions(1);
      for (int i = 0; i < num_devices; ++i) sharding.add_tile_assignment_devices(i);
    } else {
      sharding.set_type(xla::OpSharding::REPLICATED);
    }
    for (int i = 0; i < parameters; ++i) {
      type(program.add_parameters(), false);
      type(program.add_parameter_shards(), true);
      if (num_devices > 1) program.add_parameter_shardings(sharding.SerializeAsString());
    }
    for (int i = 0; i < outputs; ++i) {
      type(program.add_outputs(), false);
      type(program.add_output_shards(), true);
      if (num_devices > 1) program.add_output_shardings(sharding.SerializeAsString());
    }
    return program;
  }
};

}  // namespace parkway::runtime
