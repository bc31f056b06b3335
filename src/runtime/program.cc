#include "runtime/program.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/limits.h"
#include "base/status.h"
#include "ifrt/sharding_wire.h"

namespace parkway::runtime {
namespace {

// A single device has one sharding; several have what the compiler chose, or are all replicas when it had nothing to
// say.
absl::StatusOr<ifrt::ShardingPtr> ResolveSharding(const google::protobuf::RepeatedPtrField<std::string>& shardings,
                                                  int index, const ifrt::DeviceListPtr& devices,
                                                  ifrt::MemoryKind memory) {
  if (devices->size() == 1) return ifrt::Sharding::SingleDevice(devices->id(0), std::move(memory));
  if (shardings.empty()) return ifrt::Sharding::Replicated(devices, std::move(memory));
  xla::OpSharding sharding;
  if (!sharding.ParseFromString(shardings[index])) {
    return absl::InvalidArgumentError(absl::StrCat("the compiler's sharding ", index, " can't be read"));
  }
  return ifrt::DecodeOpSharding(sharding, devices, std::move(memory));
}

absl::StatusOr<std::pair<ifrt::DType, ifrt::Shape>> ResolveType(const TypeProto& type) {
  PARKWAY_ASSIGN_OR_RETURN(ifrt::DType dtype, ifrt::DTypeFromNumber(type.dtype()));
  PARKWAY_ASSIGN_OR_RETURN(ifrt::Shape shape, ifrt::Shape::Make(type.dims()));
  return std::make_pair(dtype, std::move(shape));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Program>> Program::Make(std::shared_ptr<const CompiledProgram> compiled,
                                                       std::vector<int> devices, Engines* engines,
                                                       CoreOptions* options) {
  auto program = std::unique_ptr<Program>(new Program());
  program->engines_ = engines;
  program->options_ = options;
  program->compiled_ = std::move(compiled);
  program->label_ = std::make_shared<const std::string>("program '" + program->compiled_->name() + "'");
  program->devices_ = std::move(devices);
  PARKWAY_ASSIGN_OR_RETURN(program->device_list_, ifrt::DeviceList::Make(program->devices_));
  program->work_ = std::make_shared<LaunchWork>(LaunchWork{program->Describe(), program->devices_, {}});
  program->hosts_ = engines->HostsOf(program->devices_);
  PARKWAY_RETURN_IF_ERROR(Annotate(program->ResolveParameters(), program->Describe()));
  PARKWAY_RETURN_IF_ERROR(Annotate(program->ResolveOutputs(), program->Describe()));
  return program;
}

absl::Status Program::ResolveParameters() {
  const auto& shardings = compiled_->parameter_shardings();
  if (!shardings.empty() && shardings.size() != compiled_->parameters_size()) {
    return absl::InvalidArgumentError(
        absl::StrCat(compiled_->parameters_size(), " parameters, but ", shardings.size(), " parameter shardings"));
  }
  for (int i = 0; i < compiled_->parameters_size(); ++i) {
    PARKWAY_ASSIGN_OR_RETURN(auto type, ResolveType(compiled_->parameters(i)));
    PARKWAY_ASSIGN_OR_RETURN(ifrt::ShardingPtr sharding, ResolveSharding(shardings, i, device_list_, std::nullopt));
    parameters_.push_back(Parameter{type.first, std::move(type.second), sharding, false, sharding});
  }
  for (int donated : compiled_->donated()) {
    if (donated >= 0 && donated < static_cast<int>(parameters_.size())) parameters_[donated].may_donate = true;
  }
  return absl::OkStatus();
}

absl::Status Program::ResolveOutputs() {
  const auto& shardings = compiled_->output_shardings();
  if (!shardings.empty() && shardings.size() != compiled_->outputs_size()) {
    return absl::InvalidArgumentError(
        absl::StrCat(compiled_->outputs_size(), " outputs, but ", shardings.size(), " output shardings"));
  }
  for (int i = 0; i < compiled_->outputs_size(); ++i) {
    PARKWAY_ASSIGN_OR_RETURN(auto type, ResolveType(compiled_->outputs(i)));
    ifrt::MemoryKind memory;
    if (i < compiled_->output_memory_kinds_size() && !compiled_->output_memory_kinds(i).empty()) {
      memory = compiled_->output_memory_kinds(i);
    }
    PARKWAY_ASSIGN_OR_RETURN(ifrt::ShardingPtr sharding, ResolveSharding(shardings, i, device_list_, memory));
    PARKWAY_ASSIGN_OR_RETURN(ifrt::Shape shard, sharding->ShardShape(type.second));
    int64_t bytes = 0;
    if (ifrt::ByteWidth(type.first) > 0) {
      PARKWAY_ASSIGN_OR_RETURN(bytes, shard.ByteSize(type.first));
    }
    outputs_.push_back(Output{ArraySpec{type.first, std::move(type.second), std::move(sharding)}, bytes});
  }
  return absl::OkStatus();
}

uint64_t Program::EnsureLoaded(uint64_t context, uint64_t session) {
  Load& load = loads_[context];
  HostList missing;
  load.incarnations.resize(hosts_.size(), 0);
  if (load.id == 0) load.id = options_->random();
  for (size_t i = 0; i < hosts_.size(); ++i) {
    uint64_t incarnation = engines_->incarnation(hosts_[i]);
    if (load.incarnations[i] == incarnation) continue;
    load.incarnations[i] = incarnation;
    missing.push_back(hosts_[i]);
  }
  if (missing.empty()) return load.id;
  Op op;
  op.set_context(context);
  op.set_session(session);
  LoadExecutable* what = op.mutable_load();
  what->set_executable(load.id);
  what->set_program(compiled_->fingerprint());
  if (compiled_->executable().size() <= limits::kInlinePutBytes) {
    what->set_inline_bytes(compiled_->executable());
  } else {
    if (offered_ == nullptr) {
      Bytes bytes;
      bytes.data = reinterpret_cast<const uint8_t*>(compiled_->executable().data());
      bytes.size = compiled_->executable().size();
      bytes.owner = compiled_;
      transfer_ = options_->transfers->Offer(std::move(bytes));
      offered_ = std::shared_ptr<const void>(compiled_.get(), [transfers = options_->transfers, id = transfer_.id()](
                                                                  const void*) { transfers->Drop(id); });
    }
    *what->mutable_transfer() = transfer_;
  }
  for (int device : devices_) what->add_devices(device);
  what->set_compile_options(compiled_->compile_options());
  *what->mutable_parameters() = compiled_->parameter_shards();
  *what->mutable_outputs() = compiled_->output_shards();
  *what->mutable_output_memory_kinds() = compiled_->output_memory_kinds();
  what->set_name(compiled_->name());
  engines_->Tell(missing, std::move(op));
  return load.id;
}

Program::~Program() {
  for (auto& [context, load] : loads_) {
    HostList loaded;
    for (size_t i = 0; i < load.incarnations.size(); ++i) {
      if (load.incarnations[i] == engines_->incarnation(hosts_[i])) loaded.push_back(hosts_[i]);
    }
    Op op;
    op.set_context(context);
    op.mutable_unload()->set_executable(load.id);
    engines_->Tell(loaded, std::move(op));
  }
}

}  // namespace parkway::runtime
