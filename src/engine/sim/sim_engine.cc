#include "engine/sim/sim_engine.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <deque>
#include <mutex>
#include <optional>
#include <set>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "engine/host_wire.h"

namespace parkway::engine {
namespace {

struct Shard {
  Type type;
  Bytes bytes;          // of a shard that was put; empty otherwise
  uint64_t output = 0;  // the first 8 bytes of a shard that was computed
  bool ready = false;
  absl::Status error;  // when ready
  std::vector<Task> waiters;
};
using ShardPtr = std::shared_ptr<Shard>;

Bytes Contents(const Shard& shard) {
  if (shard.bytes.data != nullptr) return shard.bytes;
  const size_t size = static_cast<size_t>(DenseBytes(shard.type));
  std::shared_ptr<uint8_t> memory(static_cast<uint8_t*>(std::calloc(std::max<size_t>(size, 1), 1)), std::free);
  std::memcpy(memory.get(), &shard.output, std::min(size, sizeof(shard.output)));
  return Bytes{memory.get(), size, memory, ""};
}

uint64_t Hash(const uint8_t* data, size_t size) {
  uint8_t head[64] = {};
  std::memcpy(head, data, std::min(size, sizeof(head)));
  return XXH64(head, sizeof(head), size);
}

uint64_t FingerprintOf(const Shard& shard) {
  if (shard.bytes.data != nullptr) return SimFingerprint(shard.bytes);
  const auto size = static_cast<size_t>(DenseBytes(shard.type));
  uint8_t head[sizeof(shard.output)] = {};
  std::memcpy(head, &shard.output, std::min(size, sizeof(head)));
  uint8_t padded[64] = {};
  std::memcpy(padded, head, sizeof(head));
  return XXH64(padded, sizeof(padded), size);
}

struct Counters {
  std::atomic<int> launches = 0, arrays = 0, executables = 0, contexts = 0, keys = 0;
};
// One more of something that lives, for as long as this does.
class Counted {
 public:
  Counted(std::shared_ptr<Counters> counters, std::atomic<int> Counters::*member)
      : counters_(std::move(counters)), member_(member) {
    ++((*counters_).*member_);
  }
  ~Counted() { --((*counters_).*member_); }
  Counted(const Counted&) = delete;

 private:
  const std::shared_ptr<Counters> counters_;
  std::atomic<int> Counters::*const member_;
};

class SimArray : public Array {
 public:
  SimArray(const std::shared_ptr<Counters>& counters, std::vector<int> devices, std::vector<ShardPtr> shards)
      : counted_(counters, &Counters::arrays), devices_(std::move(devices)), shards_(std::move(shards)) {}
  absl::Span<const int> devices() const override { return devices_; }
  const Type& type(int device) const override { return shard(device)->type; }
  const ShardPtr& shard(int device) const {
    return shards_[std::find(devices_.begin(), devices_.end(), device) - devices_.begin()];
  }
  const std::vector<ShardPtr>& shards() const { return shards_; }
  absl::Status Check() const {
    if (donated_) return absl::FailedPreconditionError("the array was donated to an earlier launch");
    return absl::OkStatus();
  }
  void Donate() { donated_ = true; }
  bool Has(int device) const { return std::find(devices_.begin(), devices_.end(), device) != devices_.end(); }

 private:
  const Counted counted_;
  const std::vector<int> devices_;
  const std::vector<ShardPtr> shards_;
  std::atomic<bool> donated_ = false;
};

struct Run;
using RunPtr = std::shared_ptr<Run>;

class SimContext : public Context {
 public:
  SimContext(const std::shared_ptr<Counters>& counters, const ContextSpec& spec)
      : id(spec.id),
        rank(spec.rank),
        members(static_cast<int>(spec.members.size())),
        counters_(counters),
        counted_(counters, &Counters::contexts) {}
  void OnKey(const std::string&, const std::string&) override { ++counters_->keys; }

  const uint64_t id;
  const int rank;
  const int members;
  // Inside tasks:
  int64_t next_launch = 0;
  std::optional<absl::Status> closed;
  std::set<RunPtr> runs;

 private:
  const std::shared_ptr<Counters> counters_;
  const Counted counted_;
};

class SimExecutable : public Executable {
 public:
  SimExecutable(const std::shared_ptr<Counters>& counters, const LoadSpec& spec, std::shared_ptr<SimContext> context)
      : name(spec.name),
        parameters(spec.parameters),
        outputs(spec.outputs),
        context(std::move(context)),
        counted_(counters, &Counters::executables) {
    for (size_t i = 0; i < spec.device_ids.size(); ++i) {
      if (spec.local_devices[i] < 0) continue;
      devices.push_back(spec.local_devices[i]);
      device_ids.push_back(spec.device_ids[i]);
    }
  }
  const std::string name;
  const std::vector<Type> parameters;
  const std::vector<Type> outputs;
  const std::shared_ptr<SimContext> context;  // null: local
  std::vector<int> devices, device_ids;

 private:
  const Counted counted_;
};

// One launch under way.
struct Run {
  std::string program;
  std::shared_ptr<SimContext> context;
  std::vector<int> device_ids;
  std::vector<std::vector<ShardPtr>> arguments;  // by argument, then device
  std::vector<std::vector<ShardPtr>> outputs;    // by output, then device
  absl::AnyInvocable<void(absl::Status)> done;
  absl::Status fails;
  bool hangs = false;
  bool over = false;
  size_t waiting = 0;  // arguments' shards that aren't ready
};

// Outlives the engine while tasks of it are under way.
class SimState : public std::enable_shared_from_this<SimState> {
 public:
  SimState(SimOptions options, Executor& executor, std::shared_ptr<SimWorld> world)
      : options(std::move(options)),
        executor(executor),
        world(std::move(world)),
        counters(std::make_shared<Counters>()) {}

  // Runs `task` as the engine: after `delay`, later when it is frozen, never when it has crashed.
  void Later(absl::Duration delay, Task task) {
    auto gate = [self = shared_from_this(), task = std::move(task)]() mutable {
      {
        std::lock_guard<std::mutex> lock(self->mutex);
        if (self->crashed) return;
        if (self->frozen) {
          self->held.push_back(std::move(task));
          return;
        }
      }
      task();
    };
    if (delay > absl::ZeroDuration()) {
      executor.After(delay, std::move(gate));
    } else {
      executor.Post(std::move(gate));
    }
  }

  void MakeReady(Shard& shard, const absl::Status& status) {
    shard.ready = true;
    shard.error = status;
    for (Task& waiter : std::exchange(shard.waiters, {})) waiter();
  }

  void Begin(const RunPtr& run) {
    SimContext* context = run->context.get();
    if (context != nullptr) {
      if (context->closed.has_value()) return End(run, *context->closed);
      context->runs.insert(run);
    }
    const int64_t launch = context == nullptr ? 0 : context->next_launch++;
    run->waiting = 1;
    for (const std::vector<ShardPtr>& argument : run->arguments) {
      for (const ShardPtr& shard : argument) {
        if (shard->ready) continue;
        ++run->waiting;
        shard->waiters.push_back([self = shared_from_this(), run, launch] { self->InputReady(run, launch); });
      }
    }
    InputReady(run, launch);
  }

  void InputReady(const RunPtr& run, int64_t launch) {
    if (--run->waiting > 0) return;
    for (const std::vector<ShardPtr>& argument : run->arguments) {
      for (const ShardPtr& shard : argument) {
        if (!shard->error.ok()) return End(run, shard->error);
      }
    }
    if (run->hangs) return;
    if (run->context == nullptr || run->context->members == 1 || world == nullptr) return Execute(run);
    world->Arrive(run->context->id, run->context->members, launch, run->context->rank, run->program,
                  [self = shared_from_this(), run](const absl::Status& status) {
                    self->Later(absl::ZeroDuration(),
                                [self, run, status] { status.ok() ? self->Execute(run) : self->End(run, status); });
                  });
  }

  // Programs run one after the other.
  void Execute(const RunPtr& run) {
    absl::Duration time;
    {
      std::lock_guard<std::mutex> lock(mutex);
      auto it = times.find(run->program);
      time = it == times.end() ? options.launch_time : it->second;
    }
    if (time <= absl::ZeroDuration() && busy_until <= executor.Now()) return Compute(run);
    busy_until = std::max(busy_until, executor.Now()) + time;
    Later(busy_until - executor.Now(), [self = shared_from_this(), run] { self->Compute(run); });
  }

  void Compute(const RunPtr& run) {
    std::vector<uint64_t> arguments(run->arguments.size());
    for (size_t device = 0; device < run->device_ids.size(); ++device) {
      for (size_t i = 0; i < arguments.size(); ++i) arguments[i] = FingerprintOf(*run->arguments[i][device]);
      for (size_t output = 0; output < run->outputs.size(); ++output) {
        run->outputs[output][device]->output =
            SimOutput(run->program, static_cast<int>(output), run->device_ids[device], arguments);
      }
    }
    End(run, run->fails);
  }

  void End(const RunPtr& run, absl::Status status) {  // by value: it may stand in what is cleared
    if (run->over) return;
    run->over = true;
    if (run->context != nullptr) run->context->runs.erase(run);
    for (const std::vector<ShardPtr>& output : run->outputs) {
      for (const ShardPtr& shard : output) MakeReady(*shard, status);
    }
    run->arguments.clear();
    run->outputs.clear();
    std::exchange(run->done, nullptr)(std::move(status));
  }

  void Close(SimContext& context, const absl::Status& cause) {
    context.closed = cause;
    if (world != nullptr && context.members > 1) world->Leave(context.id, context.rank);
    for (const RunPtr& run : std::set<RunPtr>(context.runs)) End(run, cause);
  }

  const SimOptions options;
  Executor& executor;
  const std::shared_ptr<SimWorld> world;
  const std::shared_ptr<Counters> counters;

  // Inside tasks.
  absl::Time busy_until = absl::InfinitePast();
  std::set<std::pair<uint64_t, int>> joined;  // contexts of the world, with the rank there

  std::mutex mutex;  // guards what follows
  bool frozen = false, crashed = false;
  std::vector<Task> held;
  absl::flat_hash_map<std::string, absl::Duration> times;
  std::deque<absl::Status> launch_fails, launch_refused, load_fails, put_fails, open_fails;
  int hangs = 0;
};

// The next one of a row of injected errors; OK when there is none.
absl::Status Next(std::deque<absl::Status>& errors) {
  if (errors.empty()) return absl::OkStatus();
  absl::Status error = std::move(errors.front());
  errors.pop_front();
  return error;
}

class SimEngineImpl : public SimEngine {
 public:
  SimEngineImpl(SimOptions options, Executor& executor, std::shared_ptr<SimWorld> world)
      : state_(std::make_shared<SimState>(std::move(options), executor, std::move(world))) {
    capabilities_.platform = state_->options.platform;
    capabilities_.version = "sim";
    capabilities_.devices = state_->options.devices;
    capabilities_.memory_kinds = state_->options.memory_kinds;
    capabilities_.launch_may_block = state_->options.launch_may_block;
  }
  ~SimEngineImpl() override {
    std::vector<Task> dropped;
    std::lock_guard<std::mutex> lock(state_->mutex);
    state_->crashed = true;
    dropped.swap(state_->held);
  }

  const Capabilities& capabilities() const override { return capabilities_; }

  absl::StatusOr<ArrayRef> MakeArray(const std::string& memory_kind, std::vector<HostShard> shards) override {
    {
      std::lock_guard<std::mutex> lock(state_->mutex);
      PARKWAY_RETURN_IF_ERROR(Next(state_->put_fails));
    }
    const std::vector<std::string>& kinds = capabilities_.memory_kinds;
    if (!memory_kind.empty() && std::find(kinds.begin(), kinds.end(), memory_kind) == kinds.end()) {
      return absl::InvalidArgumentError(absl::StrCat("there is no memory kind '", memory_kind, "'"));
    }
    if (shards.empty()) return absl::InvalidArgumentError("an array without shards");
    std::vector<int> devices;
    std::vector<ShardPtr> made;
    for (HostShard& shard : shards) {
      PARKWAY_RETURN_IF_ERROR(CheckDevice(shard.device, devices));
      PARKWAY_ASSIGN_OR_RETURN(const ifrt::Shape shape, ifrt::Shape::Make(shard.type.dims));
      PARKWAY_RETURN_IF_ERROR(shape.ByteSize(shard.type.dtype).status());
      if (static_cast<int64_t>(shard.bytes.size) != DenseBytes(shard.type)) {
        return absl::InvalidArgumentError(absl::StrCat(ToString(shard.type), " with ", shard.bytes.size, " bytes"));
      }
      devices.push_back(shard.device);
      auto& one = made.emplace_back(std::make_shared<Shard>());
      one->type = std::move(shard.type);
      one->bytes = std::move(shard.bytes);
      one->ready = state_->options.put_time <= absl::ZeroDuration();
    }
    if (state_->options.put_time > absl::ZeroDuration()) {
      state_->Later(state_->options.put_time, [state = state_, made] {
        for (const ShardPtr& shard : made) state->MakeReady(*shard, absl::OkStatus());
      });
    }
    return std::make_shared<SimArray>(state_->counters, std::move(devices), std::move(made));
  }

  absl::StatusOr<ArrayRef> Assemble(absl::Span<const ShardOf> shards) override {
    if (shards.empty()) return absl::InvalidArgumentError("an array without shards");
    std::vector<int> devices;
    std::vector<ShardPtr> made;
    for (const ShardOf& shard : shards) {
      PARKWAY_RETURN_IF_ERROR(CheckDevice(shard.device, devices));
      const auto& array = static_cast<const SimArray&>(*shard.array);
      if (!array.Has(shard.device)) {
        return absl::InvalidArgumentError(absl::StrCat("an array has no shard on local device ", shard.device));
      }
      devices.push_back(shard.device);
      made.push_back(array.shard(shard.device));
    }
    return std::make_shared<SimArray>(state_->counters, std::move(devices), std::move(made));
  }

  absl::StatusOr<ArrayRef> Zeros(absl::Span<const int> devices, const Type& type) override {
    std::vector<ShardPtr> made;
    for (size_t i = 0; i < devices.size(); ++i) {
      auto& one = made.emplace_back(std::make_shared<Shard>());
      one->type = type;
      one->ready = true;
    }
    return std::make_shared<SimArray>(state_->counters, std::vector<int>(devices.begin(), devices.end()),
                                      std::move(made));
  }

  void View(const ArrayRef& array, int device, absl::AnyInvocable<void(absl::StatusOr<Bytes>)> done) override {
    if (!static_cast<const SimArray&>(*array).Has(device)) {
      return done(absl::InvalidArgumentError(absl::StrCat("an array has no shard on local device ", device)));
    }
    if (absl::Status status = static_cast<const SimArray&>(*array).Check(); !status.ok()) return done(status);
    state_->Later({}, [state = state_, array, shard = static_cast<const SimArray&>(*array).shard(device),
                       done = std::move(done)]() mutable {
      // It waits inside the shard, and must not hold it.
      auto answer = [shard = shard.get(), done = std::move(done)]() mutable {
        done(shard->error.ok() ? absl::StatusOr<Bytes>(Contents(*shard)) : shard->error);
      };
      if (shard->ready) return answer();
      shard->waiters.push_back(std::move(answer));
    });
  }

  void WhenReady(const ArrayRef& array, absl::AnyInvocable<void(absl::Status)> done) override {
    struct Wait {
      size_t left = 1;
      absl::Status error;
      absl::AnyInvocable<void(absl::Status)> done;
    };
    auto wait = std::make_shared<Wait>();
    wait->done = std::move(done);
    state_->Later({}, [wait, shards = static_cast<const SimArray&>(*array).shards()] {
      auto one = [wait](const Shard* shard) {
        if (shard != nullptr) wait->error.Update(shard->error);
        if (--wait->left == 0) wait->done(wait->error);
      };
      for (const ShardPtr& shard : shards) {
        ++wait->left;
        if (shard->ready) {
          one(shard.get());
        } else {
          shard->waiters.push_back([one, shard = shard.get()] { one(shard); });
        }
      }
      one(nullptr);
    });
  }

  void OpenContext(ContextSpec spec, absl::AnyInvocable<void(absl::StatusOr<ContextRef>)> done) override {
    state_->Later(state_->options.open_time,
                  [state = state_, spec = std::move(spec), done = std::move(done)]() mutable {
                    absl::Status error;
                    {
                      std::lock_guard<std::mutex> lock(state->mutex);
                      error = Next(state->open_fails);
                    }
                    if (!error.ok()) return done(error);
                    auto context = std::make_shared<SimContext>(state->counters, spec);
                    state->joined.emplace(spec.id, spec.rank);
                    if (spec.publish)
                      spec.publish(absl::StrCat("sim/", spec.rank), absl::StrCat("address of ", spec.rank));
                    done(ContextRef(std::move(context)));
                  });
  }

  void CloseContext(const ContextRef& context, absl::Status cause, absl::AnyInvocable<void()> done) override {
    state_->Later({}, [state = state_, context, cause = std::move(cause), done = std::move(done)]() mutable {
      auto& sim = static_cast<SimContext&>(*context);
      state->Close(sim, cause);
      state->joined.erase({sim.id, sim.rank});
      done();
    });
  }

  absl::StatusOr<ExecutableRef> Load(const LoadSpec& spec) override {
    {
      std::lock_guard<std::mutex> lock(state_->mutex);
      PARKWAY_RETURN_IF_ERROR(Next(state_->load_fails));
    }
    if (spec.program.size == 0) return absl::InvalidArgumentError("an empty program");
    std::vector<int> so_far;
    for (int device : spec.local_devices) {
      if (device < 0) continue;
      PARKWAY_RETURN_IF_ERROR(CheckDevice(device, so_far));
      so_far.push_back(device);
    }
    if (so_far.empty()) return absl::InvalidArgumentError("a program without a local device");
    return std::make_shared<SimExecutable>(state_->counters, spec, std::static_pointer_cast<SimContext>(spec.context));
  }

  absl::StatusOr<LaunchResult> Launch(Executable& executable, absl::Span<const ArrayRef> arguments,
                                      absl::Span<const int> donated,
                                      absl::AnyInvocable<void(absl::Status)> done) override {
    const auto& program = static_cast<const SimExecutable&>(executable);
    if (arguments.size() != program.parameters.size()) {
      return absl::InvalidArgumentError(absl::StrCat(program.name, " takes ", program.parameters.size(), " arguments"));
    }
    auto run = std::make_shared<Run>();
    {
      std::lock_guard<std::mutex> lock(state_->mutex);
      PARKWAY_RETURN_IF_ERROR(Next(state_->launch_refused));
      run->fails = Next(state_->launch_fails);
      run->hangs = state_->hangs > 0;
      if (run->hangs) --state_->hangs;
    }
    run->program = program.name;
    run->context = program.context;
    run->device_ids = program.device_ids;
    run->done = std::move(done);
    for (const ArrayRef& argument : arguments) {
      const auto& array = static_cast<const SimArray&>(*argument);
      PARKWAY_RETURN_IF_ERROR(array.Check());
      std::vector<ShardPtr>& shards = run->arguments.emplace_back();
      for (int device : program.devices) {
        if (!array.Has(device)) {
          return absl::InvalidArgumentError(
              absl::StrCat("an argument of ", program.name, " has no shard on local device ", device));
        }
        shards.push_back(array.shard(device));
        if (const auto mismatch = Mismatch(shards.back()->type, program.parameters[run->arguments.size() - 1])) {
          return absl::InvalidArgumentError(absl::StrCat("an argument of ", program.name, " is ", *mismatch));
        }
      }
    }
    for (int index : donated) static_cast<SimArray&>(*arguments[index]).Donate();
    LaunchResult result;
    for (const Type& type : program.outputs) {
      std::vector<ShardPtr>& shards = run->outputs.emplace_back();
      for (size_t i = 0; i < program.devices.size(); ++i) {
        shards.push_back(std::make_shared<Shard>());
        shards.back()->type = type;
      }
      result.outputs.push_back(std::make_shared<SimArray>(state_->counters, program.devices, shards));
    }
    ++state_->counters->launches;
    state_->Later({}, [state = state_, run] { state->Begin(run); });
    return result;
  }

  void SetLaunchTime(const std::string& program, absl::Duration time) override {
    std::lock_guard<std::mutex> lock(state_->mutex);
    state_->times[program] = time;
  }
  void FailNextLaunch(absl::Status how) override { Inject(state_->launch_fails, std::move(how)); }
  void RefuseNextLaunch(absl::Status how) override { Inject(state_->launch_refused, std::move(how)); }
  void FailNextLoad(absl::Status how) override { Inject(state_->load_fails, std::move(how)); }
  void FailNextPut(absl::Status how) override { Inject(state_->put_fails, std::move(how)); }
  void FailNextOpen(absl::Status how) override { Inject(state_->open_fails, std::move(how)); }
  void HangNextLaunch() override {
    std::lock_guard<std::mutex> lock(state_->mutex);
    ++state_->hangs;
  }
  void Freeze() override {
    std::lock_guard<std::mutex> lock(state_->mutex);
    state_->frozen = true;
  }
  void Thaw() override {
    std::vector<Task> held;
    {
      std::lock_guard<std::mutex> lock(state_->mutex);
      state_->frozen = false;
      held.swap(state_->held);
    }
    for (Task& task : held) state_->executor.Post(std::move(task));
  }
  void Crash() override {
    std::vector<Task> dropped;
    {
      std::lock_guard<std::mutex> lock(state_->mutex);
      state_->crashed = true;
      dropped.swap(state_->held);
    }
    if (state_->world == nullptr) return;
    state_->executor.Post([state = state_] {
      for (const auto& [context, rank] : state->joined) state->world->Leave(context, rank);
    });
  }
  Counts counts() const override {
    const Counters& counters = *state_->counters;
    return {.launches = counters.launches,
            .live_arrays = counters.arrays,
            .live_executables = counters.executables,
            .open_contexts = counters.contexts,
            .keys = counters.keys};
  }

 private:
  absl::Status CheckDevice(int device, const std::vector<int>& so_far) const {
    if (device < 0 || device >= capabilities_.devices || std::count(so_far.begin(), so_far.end(), device) != 0) {
      return absl::InvalidArgumentError(absl::StrCat("no use of local device ", device));
    }
    return absl::OkStatus();
  }
  void Inject(std::deque<absl::Status>& errors, absl::Status how) {
    std::lock_guard<std::mutex> lock(state_->mutex);
    errors.push_back(std::move(how));
  }

  const std::shared_ptr<SimState> state_;
  Capabilities capabilities_;
};

}  // namespace

std::unique_ptr<SimEngine> SimEngine::Create(SimOptions options, Executor& executor, std::shared_ptr<SimWorld> world) {
  return std::make_unique<SimEngineImpl>(std::move(options), executor, std::move(world));
}

uint64_t SimFingerprint(const Bytes& bytes) { return Hash(bytes.data, bytes.size); }

uint64_t SimOutput(const std::string& program, int output, int device, absl::Span<const uint64_t> arguments) {
  XXH64_hash_t hash = XXH64(program.data(), program.size(), 0);
  const uint64_t where[2] = {static_cast<uint64_t>(output), static_cast<uint64_t>(device)};
  hash = XXH64(where, sizeof(where), hash);
  return XXH64(arguments.data(), arguments.size() * sizeof(uint64_t), hash);
}

}  // namespace parkway::engine
