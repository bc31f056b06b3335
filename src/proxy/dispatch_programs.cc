#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/limits.h"
#include "base/status.h"
#include "ifrt/attributes_wire.h"
#include "ifrt/named_sharding_wire.h"
#include "ifrt/type_wire.h"
#include "proto/ifrt/program.pb.h"
#include "proxy/dispatcher.h"
#include "proxy/plugin_program.h"
#include "proxy/wire_status.h"

namespace parkway::proxy {

namespace wire = xla::ifrt::proxy;

namespace {

// Why a program of another kind than XLA's is not taken.
absl::Status WhyNotXla(const std::string& type_name) {
  if (type_name == "xla::ifrt::CustomCallProgram") {
    return absl::UnimplementedError("colocated Python (jax.experimental.colocated_python) is not part of Parkway yet");
  }
  if (type_name == "xla::ifrt::IfrtIRProgram") {
    return absl::UnimplementedError("Parkway runs no MPMD programs (IFRT IR): compile one program for each mesh");
  }
  return absl::InvalidArgumentError(
      absl::StrCat("program of a type that this proxy doesn't know: \"", type_name, "\""));
}

// The ids of a program's devices, replica-major. Those of the proxy from 0 on where the client names none.
absl::StatusOr<std::vector<int>> DecodeAssignment(const xla::ExecutableBuildOptionsProto& options) {
  const int64_t replicas = std::max<int64_t>(options.num_replicas(), 1);
  const int64_t partitions = std::max<int64_t>(options.num_partitions(), 1);
  if (replicas > limits::kMaxDevicesPerSharding || partitions > limits::kMaxDevicesPerSharding / replicas) {
    return absl::InvalidArgumentError(absl::StrCat("a program for ", replicas, " replicas of ", partitions,
                                                   " partitions; at most ", limits::kMaxDevicesPerSharding,
                                                   " devices"));
  }
  std::vector<int> ids;
  if (!options.has_device_assignment()) {
    for (int id = 0; id < replicas * partitions; ++id) ids.push_back(id);
    return ids;
  }
  const xla::DeviceAssignmentProto& assignment = options.device_assignment();
  auto wrong = [&](const char* what) {
    return absl::InvalidArgumentError(absl::StrCat("the device assignment of a program for ", replicas, " replicas of ",
                                                   partitions, " partitions ", what));
  };
  if (assignment.replica_count() != replicas || assignment.computation_count() != partitions ||
      assignment.computation_devices_size() != partitions) {
    return wrong("has other counts");
  }
  for (const auto& partition : assignment.computation_devices()) {
    if (partition.replica_device_ids_size() != replicas) return wrong("lacks devices");
  }
  for (int64_t replica = 0; replica < replicas; ++replica) {
    for (const auto& partition : assignment.computation_devices()) {
      const int64_t id = partition.replica_device_ids(static_cast<int>(replica));
      if (id < 0 || id > INT32_MAX) return wrong("names no device");
      ids.push_back(static_cast<int>(id));
    }
  }
  return ids;
}

// Where a layout has tiles or the like an error is told in place of all of them, which clients take well.
template <typename List, typename Error>
void FillLayouts(const google::protobuf::RepeatedPtrField<std::string>& texts, List list, Error error) {
  std::vector<ifrt::Layout> layouts;
  for (const std::string& text : texts) {
    absl::StatusOr<ifrt::Layout> layout = ifrt::Layout::Parse(text);
    if (!layout.ok()) return EncodeStatus(layout.status(), error());
    layouts.push_back(*std::move(layout));
  }
  auto* out = list();
  for (const ifrt::Layout& layout : layouts) ifrt::EncodeXlaLayout(layout, out->add_layouts());
}

void FillCompiled(const runtime::CompileReply& compiled, wire::CompileResponse* response) {
  response->set_loaded_executable_handle(compiled.executable);
  response->set_ready_future_handle(compiled.ready_future);
  response->set_name(compiled.program->name());
  response->set_num_devices(static_cast<int>(compiled.devices.size()));
  for (int id : compiled.devices) {
    response->add_device_ids(id);
    response->add_addressable_device_ids(id);
  }
  if (!compiled.program->fingerprint().empty()) response->set_fingerprint_value(compiled.program->fingerprint());
}

// Never in the named form: a client that gets it aborts.
absl::Status FillShardings(const google::protobuf::RepeatedPtrField<std::string>& serialized,
                           wire::LoadedExecutableMetadataResponse::ShardingList* list) {
  for (const std::string& bytes : serialized) {
    xla::OpSharding sharding;
    if (!sharding.ParseFromString(bytes)) return absl::FailedPreconditionError("a sharding that can't be read");
    PARKWAY_ASSIGN_OR_RETURN(*list->add_shardings(), ifrt::WithoutNamed(sharding));
  }
  return absl::OkStatus();
}

void FillMemory(const CompiledMemory& memory, xla::CompiledMemoryStatsProto* stats) {
  stats->set_generated_code_size_in_bytes(memory.generated_code_bytes());
  stats->set_argument_size_in_bytes(memory.argument_bytes());
  stats->set_output_size_in_bytes(memory.output_bytes());
  stats->set_alias_size_in_bytes(memory.alias_bytes());
  stats->set_temp_size_in_bytes(memory.temp_bytes());
}

absl::Status FillMetadata(const CompiledProgram& program, bool sharded,
                          wire::LoadedExecutableMetadataResponse* response) {
  // A client takes a program of one device for unsharded only when nothing is said.
  if (sharded) {
    PARKWAY_RETURN_IF_ERROR(FillShardings(program.parameter_shardings(), response->mutable_parameter_shardings()));
    PARKWAY_RETURN_IF_ERROR(FillShardings(program.output_shardings(), response->mutable_output_shardings()));
  }
  FillLayouts(
      program.parameter_layouts(), [&] { return response->mutable_parameter_layouts_list(); },
      [&] { return response->mutable_parameter_layouts_error(); });
  FillLayouts(
      program.output_layouts(), [&] { return response->mutable_output_layouts_list(); },
      [&] { return response->mutable_output_layouts_error(); });
  auto* kinds = response->mutable_output_memory_kinds()->add_memory_kind_lists();
  for (int i = 0; i < program.outputs_size(); ++i) {
    const bool named = i < program.output_memory_kinds_size() && !program.output_memory_kinds(i).empty();
    kinds->add_memory_kinds(named ? program.output_memory_kinds(i) : "device");
  }
  auto* donated = response->mutable_donated_input_indices();
  for (int index : program.donated()) donated->add_donated_input_indices(index);
  FillMemory(program.memory(), response->mutable_compiled_memory_stats());
  response->set_size_of_generated_code_in_bytes(program.memory().generated_code_bytes());
  return absl::OkStatus();
}

}  // namespace

bool Dispatcher::HandlePrograms(const Request& request) {
  switch (request.request_case()) {
    case Request::kLoadedExecutableExecuteRequest: {
      const auto& execute = request.loaded_executable_execute_request();
      // Only the first call of each program waits for the handles and types of the outputs.
      const bool awaited = execute.result_array_handle().empty();
      Execute(execute, MakeReply(request, awaited ? Reply::Kind::kAwaited : Reply::Kind::kUnawaited));
      return true;
    }
    case Request::kCompileRequest:
      Compile(request.compile_request(), MakeReply(request, Reply::Kind::kAwaited));
      return true;
    case Request::kLoadedExecutableMetadataRequest:
      Metadata(request.loaded_executable_metadata_request().loaded_executable_handle(),
               MakeReply(request, Reply::Kind::kAwaited));
      return true;
    case Request::kLoadedExecutableFetchExecuteResultRequest:
      FetchExecuteResult(request.loaded_executable_fetch_execute_result_request(),
                         MakeReply(request, Reply::Kind::kAwaited));
      return true;
    case Request::kLoadedExecutableCostAnalysisRequest:
      CostAnalysis(request.loaded_executable_cost_analysis_request().loaded_executable_handle(),
                   MakeReply(request, Reply::Kind::kAwaited));
      return true;
    case Request::kLoadedExecutableHumanReadableProgramTextRequest:
      ProgramText(request.loaded_executable_human_readable_program_text_request().loaded_executable_handle(),
                  MakeReply(request, Reply::Kind::kAwaited));
      return true;
    case Request::kLoadedExecutableDestructRequest: {
      Reply reply = MakeReply(request, Reply::Kind::kUnawaited);
      reply.message()->mutable_loaded_executable_destruct_response();
      absl::Status status =
          options_.session->DestructExecutable(request.loaded_executable_destruct_request().loaded_executable_handle());
      status.ok() ? reply.Ok() : reply.Fail(status);
      return true;
    }
    default:
      return false;
  }
}

void Dispatcher::Compile(const wire::CompileRequest& request, Reply reply) {
  if (request.program().type_name() == "xla::ifrt::PluginProgram") {
    absl::Status status = CompilePlugin(request.program().data(), reply.message()->mutable_compile_response());
    return status.ok() ? reply.Ok() : reply.Fail(status);
  }
  auto decode = [&]() -> absl::StatusOr<runtime::CompileRequest> {
    if (request.program().type_name() != "xla::ifrt::XlaProgram") return WhyNotXla(request.program().type_name());
    if (!request.host_callbacks().empty()) {
      return absl::UnimplementedError(
          "the program calls back into the client (jax.debug.print, jax.debug.callback, jax.pure_callback, "
          "io_callback), which an IFRT proxy client can't do");
    }
    if (static_cast<int64_t>(request.program().data().size()) > limits::kMaxProgramBytes) {
      return absl::InvalidArgumentError(absl::StrCat("the program has ", request.program().data().size(),
                                                     " bytes; at most ", limits::kMaxProgramBytes));
    }
    xla::ifrt::XlaCompileOptionsProto options;
    if (request.compile_options().type_name() != "xla::ifrt::XlaCompileOptions" ||
        !options.ParseFromString(request.compile_options().data())) {
      return absl::InvalidArgumentError("compile options that can't be read");
    }
    runtime::CompileRequest compile;
    PARKWAY_ASSIGN_OR_RETURN(compile.devices, DecodeAssignment(options.compile_options().executable_build_options()));
    for (int id : compile.devices) PARKWAY_RETURN_IF_ERROR(CheckDevice(id));
    PARKWAY_RETURN_IF_ERROR(ifrt::DeviceList::Make(compile.devices).status());  // each once
    compile.program = request.program().data();
    compile.compile_options = options.compile_options().SerializeAsString();
    return compile;
  };
  absl::StatusOr<runtime::CompileRequest> compile = decode();
  if (!compile.ok()) return reply.Fail(compile.status());
  auto done = [reply = std::move(reply)](absl::StatusOr<runtime::CompileReply> compiled) mutable {
    if (!compiled.ok()) return reply.Fail(compiled.status());
    FillCompiled(*compiled, reply.message()->mutable_compile_response());
    reply.Ok();
  };
  options_.session->Compile(*std::move(compile), std::move(done));
}

absl::Status Dispatcher::CompilePlugin(const std::string& program, wire::CompileResponse* response) {
  PARKWAY_ASSIGN_OR_RETURN(runtime::ReshardRequest request, DecodePluginProgram(program));
  for (const auto* side : {&request.inputs, &request.outputs}) {
    for (const ifrt::ShardingPtr& sharding : *side) {
      PARKWAY_RETURN_IF_ERROR(Annotate(CheckPlace(*sharding), "Bad PluginProgram: reshardRequest"));
    }
  }
  PARKWAY_ASSIGN_OR_RETURN(runtime::CompileReply compiled, options_.session->CompileReshard(std::move(request)));
  FillCompiled(compiled, response);
  return absl::OkStatus();
}

void Dispatcher::Execute(const wire::LoadedExecutableExecuteRequest& request, Reply reply) {
  const Handles results = request.result_array_handle();
  auto check = [&]() -> absl::Status {
    PARKWAY_RETURN_IF_ERROR(CheckClientHandles(results));
    if (request.args_handles_size() > limits::kMaxArgumentsPerLaunch) {
      return absl::InvalidArgumentError(absl::StrCat("a launch with ", request.args_handles_size(),
                                                     " arguments; at most ", limits::kMaxArgumentsPerLaunch));
    }
    if (!request.device_ids().empty()) {
      return absl::UnimplementedError("portable executables, which are told their devices at each launch");
    }
    return absl::OkStatus();
  };
  if (absl::Status status = check(); !status.ok()) return reply.Fail(FailArrays(results, status));
  const auto& options = request.execute_options();
  absl::StatusOr<runtime::ExecuteReply> executed = options_.session->Execute({
      .executable = request.loaded_executable_handle(),
      .arguments = request.args_handles(),
      .non_donatable = options.non_donatable_input_indices(),
      .launch_id = options.launch_id(),
      .results = results,
      .fill_status = options.fill_status(),
      .status_handle = request.result_status_handle(),
  });
  if (!executed.ok()) return reply.Fail(executed.status());
  wire::LoadedExecutableExecuteResponse* response = reply.message()->mutable_loaded_executable_execute_response();
  // A client aborts on a status handle that it did not ask for.
  if (options.fill_status()) response->set_status_handle(executed->status_handle);
  if (results.empty()) {
    for (const auto& output : executed->outputs) {
      auto* out = response->add_outputs();
      ifrt::EncodeDType(output.spec.dtype, out->mutable_dtype());
      ifrt::EncodeShape(output.spec.shape, out->mutable_shape());
      ifrt::EncodeSharding(*output.spec.sharding, out->mutable_sharding());
      out->set_array_handle(output.handle);
    }
  }
  reply.Ok();
}

void Dispatcher::FetchExecuteResult(const wire::LoadedExecutableFetchExecuteResultRequest& request, Reply reply) {
  options_.session->CheckFuture(request.result_status_handle(),
                                [reply = std::move(reply)](const absl::Status& status) mutable {
                                  if (!status.ok()) return reply.Fail(status);
                                  reply.message()->mutable_loaded_executable_fetch_execute_result_response();
                                  reply.Ok();
                                });
}

void Dispatcher::Metadata(runtime::Handle executable, Reply reply) {
  absl::StatusOr<runtime::CompileReply> compiled = options_.session->Executable(executable);
  if (!compiled.ok()) return reply.Fail(compiled.status());
  absl::Status status = FillMetadata(*compiled->program, compiled->devices.size() > 1,
                                     reply.message()->mutable_loaded_executable_metadata_response());
  status.ok() ? reply.Ok() : reply.Fail(Annotate(status, compiled->program->name()));
}

void Dispatcher::CostAnalysis(runtime::Handle executable, Reply reply) {
  absl::StatusOr<runtime::CompileReply> compiled = options_.session->Executable(executable);
  if (!compiled.ok()) return reply.Fail(compiled.status());
  ifrt::Attributes attributes;
  for (const auto& [name, value] : compiled->program->costs()) attributes[name] = static_cast<float>(value);
  *reply.message()->mutable_loaded_executable_cost_analysis_response()->mutable_attributes() =
      ifrt::EncodeAttributes(attributes);
  reply.Ok();
}

void Dispatcher::ProgramText(runtime::Handle executable, Reply reply) {
  absl::StatusOr<runtime::CompileReply> compiled = options_.session->Executable(executable);
  if (!compiled.ok()) return reply.Fail(compiled.status());
  reply.message()->mutable_loaded_executable_human_readable_program_text_response()->set_human_readable_program_text(
      compiled->program->text());
  reply.Ok();
}

}  // namespace parkway::proxy
