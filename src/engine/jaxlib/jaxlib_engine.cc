#include "engine/jaxlib/jaxlib_engine.h"

#include <algorithm>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/machine.h"
#include "base/status.h"
#include "engine/jaxlib/array.h"
#include "engine/jaxlib/context.h"
#include "engine/jaxlib/executable.h"
#include "engine/jaxlib/numpy.h"
#include "engine/jaxlib/zeros.h"

namespace parkway::engine {
namespace {

const JaxArray& Of(const ArrayRef& array) { return static_cast<const JaxArray&>(*array); }

// Bytes of a dense array, or -1 when that is no size.
int64_t DenseBytes(const Type& type) {
  int64_t bytes = ifrt::ByteWidth(type.dtype);
  for (int64_t size : type.dims) {
    if (size < 0 || __builtin_mul_overflow(bytes, size, &bytes)) return -1;
  }
  return bytes;
}

class JaxlibEngine : public Engine {
 public:
  JaxlibEngine(const Api& api, JaxlibEngineOptions options) : api_(api), options_(std::move(options)) {}

  absl::Status Start();
  const Capabilities& capabilities() const override { return capabilities_; }

  absl::StatusOr<ArrayRef> MakeArray(const std::string& memory_kind, std::vector<HostShard> shards) override;
  absl::StatusOr<ArrayRef> Assemble(absl::Span<const ShardOf> shards) override;
  absl::StatusOr<ArrayRef> Zeros(absl::Span<const int> devices, const Type& type) override;
  void View(const ArrayRef& array, int device, absl::AnyInvocable<void(absl::StatusOr<Bytes>)> done) override;
  void WhenReady(const ArrayRef& array, absl::AnyInvocable<void(absl::Status)> done) override;
  void OpenContext(ContextSpec spec, absl::AnyInvocable<void(absl::StatusOr<ContextRef>)> done) override;
  void CloseContext(const ContextRef& context, absl::Status cause, absl::AnyInvocable<void()> done) override;
  absl::StatusOr<ExecutableRef> Load(const LoadSpec& spec) override;
  absl::StatusOr<LaunchResult> Launch(Executable& executable, absl::Span<const ArrayRef> arguments,
                                      absl::Span<const int> donated,
                                      absl::AnyInvocable<void(absl::Status)> done) override {
    return static_cast<JaxExecutable&>(executable).Launch(arguments, donated, std::move(done));
  }

 private:
  absl::Status CheckDevices(absl::Span<const int> devices) const;
  absl::StatusOr<ArrayRef> Put(ArrayLayoutRef layout, std::vector<Bytes> bytes);
  absl::StatusOr<PyRef> PutShards(const ArrayLayout& layout, const DeviceSet& set, absl::Span<Bytes> bytes);
  absl::StatusOr<CompletionRef> CompletionOf(const DeviceSetRef& set, absl::Span<PyObject* const> arrays);

  const Api& api_;
  const JaxlibEngineOptions options_;
  Capabilities capabilities_;
  std::shared_ptr<Client> local_;
  ZeroPages zeros_;
};

absl::Status JaxlibEngine::Start() {
  Gil gil;
  PyRef devices(PyLong_FromLong(options_.devices));
  if (!devices) return TakePythonError();
  PARKWAY_ASSIGN_OR_RETURN(PyRef client, CallPython(api_.local_client, {devices.get()}));
  PARKWAY_ASSIGN_OR_RETURN(local_, Client::Wrap(api_, std::move(client), 0, options_.devices));
  capabilities_.platform = "cpu";
  capabilities_.version = absl::StrCat("jaxlib ", api_.version);
  capabilities_.devices = options_.devices;
  capabilities_.memory_kinds = local_->memory_kinds();
  capabilities_.cpu_features = CpuFeatures();
  return absl::OkStatus();
}

absl::Status JaxlibEngine::CheckDevices(absl::Span<const int> devices) const {
  std::vector<bool> seen(options_.devices, false);
  if (devices.empty()) return absl::InvalidArgumentError("an array needs a shard on at least one device of the host");
  for (int device : devices) {
    if (device < 0 || device >= options_.devices) {
      return absl::InvalidArgumentError(
          absl::StrCat("local device ", device, "; this host has ", options_.devices, ", numbered from 0"));
    }
    if (seen[device]) return absl::InvalidArgumentError(absl::StrCat("two shards for local device ", device));
    seen[device] = true;
  }
  return absl::OkStatus();
}

absl::StatusOr<ArrayRef> JaxlibEngine::MakeArray(const std::string& memory_kind, std::vector<HostShard> shards) {
  auto layout = std::make_shared<ArrayLayout>();
  PARKWAY_ASSIGN_OR_RETURN(layout->memory_kind, local_->MemoryKind(memory_kind));
  std::vector<Bytes> bytes;
  for (HostShard& shard : shards) {
    const int64_t size = DenseBytes(shard.type);
    if (size < 0 || static_cast<uint64_t>(size) != shard.bytes.size) {
      return absl::InvalidArgumentError(absl::StrCat("the shard for local device ", shard.device, " has ",
                                                     shard.bytes.size, " bytes; ", ifrt::Name(shard.type.dtype), "[",
                                                     absl::StrJoin(shard.type.dims, ","), "] takes ", size));
    }
    layout->devices.push_back(shard.device);
    layout->types.push_back(std::move(shard.type));
    bytes.push_back(std::move(shard.bytes));
  }
  PARKWAY_RETURN_IF_ERROR(CheckDevices(layout->devices));
  return Put(std::move(layout), std::move(bytes));
}

absl::StatusOr<ArrayRef> JaxlibEngine::Zeros(absl::Span<const int> devices, const Type& type) {
  PARKWAY_RETURN_IF_ERROR(CheckDevices(devices));
  const int64_t size = DenseBytes(type);
  if (size < 0) return absl::InvalidArgumentError("zeros of a shape that is none");
  PARKWAY_ASSIGN_OR_RETURN(Bytes zeros, zeros_.Get(size));
  auto layout = std::make_shared<ArrayLayout>();
  layout->devices.assign(devices.begin(), devices.end());
  layout->types.assign(devices.size(), type);
  return Put(std::move(layout), std::vector<Bytes>(devices.size(), zeros));
}

absl::StatusOr<ArrayRef> JaxlibEngine::Put(ArrayLayoutRef layout, std::vector<Bytes> bytes) {
  Gil gil;
  DropQueued();
  const bool even = std::all_of(layout->types.begin(), layout->types.end(),
                                [&](const Type& type) { return type == layout->types[0]; });
  if (even) {
    PARKWAY_ASSIGN_OR_RETURN(DeviceSetRef set, local_->LocalDevices(layout->devices));
    PARKWAY_ASSIGN_OR_RETURN(PyRef whole, PutShards(*layout, *set, absl::MakeSpan(bytes)));
    PARKWAY_ASSIGN_OR_RETURN(CompletionRef completion, CompletionOf(set, {whole.get()}));
    return std::make_shared<JaxArray>(api_, std::move(layout), std::move(set), HeldRef(std::move(whole)),
                                      std::move(completion));
  }
  std::vector<ShardRef> shards;
  std::vector<CompletionRef> completions;
  for (size_t i = 0; i < bytes.size(); ++i) {
    ArrayLayout one{{layout->devices[i]}, {layout->types[i]}, layout->memory_kind};
    PARKWAY_ASSIGN_OR_RETURN(DeviceSetRef set, local_->LocalDevices(one.devices));
    PARKWAY_ASSIGN_OR_RETURN(PyRef shard, PutShards(one, *set, absl::MakeSpan(bytes).subspan(i, 1)));
    PARKWAY_ASSIGN_OR_RETURN(CompletionRef completion, CompletionOf(set, {shard.get()}));
    shards.push_back(std::make_shared<Shard>(Shard{HeldRef(std::move(shard)), std::move(set)}));
    completions.push_back(std::move(completion));
  }
  return std::make_shared<JaxArray>(api_, std::move(layout), std::move(shards), std::move(completions));
}

absl::StatusOr<PyRef> JaxlibEngine::PutShards(const ArrayLayout& layout, const DeviceSet& set,
                                              absl::Span<Bytes> bytes) {
  PyRef list(PyList_New(0));
  if (!list) return TakePythonError();
  const Type& type = layout.types[0];
  auto dtype = api_.dtypes.find(type.dtype);
  if (dtype == api_.dtypes.end()) {
    return absl::InvalidArgumentError(absl::StrCat("arrays of type ", ifrt::Name(type.dtype), " can't be on a device"));
  }
  for (Bytes& shard : bytes) {
    PARKWAY_ASSIGN_OR_RETURN(PyRef numpy, NumpyOfBytes(dtype->second, type.dims, std::move(shard)));
    if (PyList_Append(list.get(), numpy.get()) != 0) return TakePythonError();
  }
  return PutNumpy(api_, type, set, layout.memory_kind, list.get());
}

// Null when the arrays are there already.
absl::StatusOr<CompletionRef> JaxlibEngine::CompletionOf(const DeviceSetRef& set, absl::Span<PyObject* const> arrays) {
  bool ready = true;
  for (PyObject* array : arrays) {
    PyRef answer(PyObject_CallMethodNoArgs(array, api_.name_is_ready));
    if (!answer) return TakePythonError();
    ready &= answer.get() == Py_True;
  }
  if (ready) return nullptr;
  PARKWAY_ASSIGN_OR_RETURN(PyRef list, ListOf(arrays));
  auto completion = std::make_shared<Completion>();
  AwaitInLane(set.get(), Awaited{nullptr, std::make_shared<HeldRef>(std::move(list)), completion, nullptr});
  return completion;
}

absl::StatusOr<ArrayRef> JaxlibEngine::Assemble(absl::Span<const ShardOf> parts) {
  auto layout = std::make_shared<ArrayLayout>();
  std::vector<ShardRef> shards;
  std::vector<CompletionRef> completions;
  Gil gil;
  for (const ShardOf& part : parts) {
    auto& array = static_cast<JaxArray&>(*part.array);
    if (!array.Has(part.device)) {
      return absl::InvalidArgumentError(
          absl::StrCat("an array to assemble of has no shard on local device ", part.device));
    }
    if (layout->devices.empty()) layout->memory_kind = array.layout()->memory_kind;
    if (layout->memory_kind != array.layout()->memory_kind) {
      return absl::InvalidArgumentError("shards of different memory kinds can't be one array");
    }
    PARKWAY_ASSIGN_OR_RETURN(ShardRef shard, array.ShardOn(part.device));
    layout->devices.push_back(part.device);
    layout->types.push_back(array.type(part.device));
    shards.push_back(std::move(shard));
    completions.push_back(array.completion(part.device));
  }
  PARKWAY_RETURN_IF_ERROR(CheckDevices(layout->devices));
  return std::make_shared<JaxArray>(api_, std::move(layout), std::move(shards), std::move(completions));
}

void JaxlibEngine::View(const ArrayRef& array, int device, absl::AnyInvocable<void(absl::StatusOr<Bytes>)> done) {
  auto& shards = static_cast<JaxArray&>(*array);
  if (!shards.Has(device)) {
    return done(absl::InvalidArgumentError(absl::StrCat("the array has no shard on local device ", device)));
  }
  auto view = [array, &shards, device, done = std::move(done)](const absl::Status& status) mutable {
    if (!status.ok()) {
      --shards.promised_views();
      return done(status);
    }
    absl::StatusOr<Bytes> bytes = shards.ViewReady(device);
    --shards.promised_views();
    done(std::move(bytes));
  };
  ++shards.promised_views();
  if (const CompletionRef& completion = shards.completion(device); completion != nullptr) {
    completion->Then(std::move(view));
  } else {
    view(absl::OkStatus());
  }
}

void JaxlibEngine::WhenReady(const ArrayRef& array, absl::AnyInvocable<void(absl::Status)> done) {
  CompletionRef all = JoinCompletions(Of(array).completions());
  if (all == nullptr) return done(absl::OkStatus());
  all->Then([done = std::move(done)](const absl::Status& status) mutable { done(status); });
}

void JaxlibEngine::OpenContext(ContextSpec spec, absl::AnyInvocable<void(absl::StatusOr<ContextRef>)> done) {
  std::thread([api = &api_, options = options_, spec = std::move(spec), done = std::move(done)]() mutable {
    done(JaxContext::Open(*api, options.bind_host, options.devices, std::move(spec)));
  }).detach();
}

void JaxlibEngine::CloseContext(const ContextRef& context, absl::Status cause, absl::AnyInvocable<void()> done) {
  std::thread([context = std::static_pointer_cast<JaxContext>(context), cause = std::move(cause),
               done = std::move(done)]() mutable {
    context->Close(std::move(cause));
    context = nullptr;
    done();
  }).detach();
}

absl::StatusOr<ExecutableRef> JaxlibEngine::Load(const LoadSpec& spec) {
  if (spec.context != nullptr) return static_cast<JaxContext&>(*spec.context).Load(spec);
  for (int device : spec.local_devices) {
    if (device < 0 || device >= options_.devices) {
      return absl::InvalidArgumentError(absl::StrCat("program ", spec.name, " runs on local device ", device,
                                                     " of a host with ", options_.devices,
                                                     "; one that spans hosts needs a context"));
    }
  }
  return JaxExecutable::Load(api_, local_, nullptr, spec.local_devices, spec);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Engine>> MakeJaxlibEngine(const JaxlibEngineOptions& options) {
  if (options.devices < 1)
    return absl::InvalidArgumentError(absl::StrCat("an engine of ", options.devices, " devices"));
  SetPoolThreads(options.devices);
  PARKWAY_ASSIGN_OR_RETURN(const Api* api, GetApi());
  auto engine = std::make_unique<JaxlibEngine>(*api, options);
  PARKWAY_RETURN_IF_ERROR(engine->Start());
  return engine;
}

}  // namespace parkway::engine
