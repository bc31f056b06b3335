#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "ifrt/remap_wire.h"
#include "ifrt/type_wire.h"
#include "proxy/dispatcher.h"
#include "proxy/init_response.h"

namespace parkway::proxy {

namespace wire = xla::ifrt::proxy;

namespace {

absl::StatusOr<runtime::CopySemantics> DecodeSemantics(xla::ifrt::proto::ArrayCopySemantics semantics) {
  switch (semantics) {
    case xla::ifrt::proto::ARRAY_COPY_SEMANTICS_ALWAYS_COPY:
      return runtime::CopySemantics::kAlwaysCopy;
    case xla::ifrt::proto::ARRAY_COPY_SEMANTICS_REUSE_INPUT:
      return runtime::CopySemantics::kReuseInput;
    case xla::ifrt::proto::ARRAY_COPY_SEMANTICS_DONATE_INPUT:
      return runtime::CopySemantics::kDonateInput;
    default:
      return absl::InvalidArgumentError(
          absl::StrCat("what becomes of the input is not said (copy semantics ", static_cast<int>(semantics), ")"));
  }
}

absl::Status CheckCount(const char* what, int inputs, int results) {
  if (inputs == results) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(what, " ", inputs, " arrays to ", results));
}

}  // namespace

bool Dispatcher::HandleMoves(const Request& request) {
  // All of them answer at once: the results may still become errors.
  using Response = wire::IfrtResponse;
  auto answer = [&](const absl::Status& status, auto fill) {
    Reply reply = MakeReply(request, Reply::Kind::kUnawaited);
    if (!status.ok()) return reply.Fail(status);
    fill(*reply.message());
    reply.Ok();
  };
  auto one = [&](const absl::Status& status, runtime::Handle result, auto member) {
    answer(status, [&](Response& response) { (response.*member)()->set_array_handle(result); });
  };
  auto many = [&](const absl::Status& status, const auto& results, auto member) {
    answer(status, [&](Response& response) { *(response.*member)()->mutable_array_handles() = results; });
  };
  switch (request.request_case()) {
    case Request::kAssembleArrayFromSingleDeviceArraysRequest: {
      const auto& assemble = request.assemble_array_from_single_device_arrays_request();
      one(Assemble(assemble), assemble.result_handle(),
          &Response::mutable_assemble_array_from_single_device_arrays_response);
      return true;
    }
    case Request::kDisassembleIntoSingleDeviceArraysRequest: {
      const auto& split = request.disassemble_into_single_device_arrays_request();
      many(Disassemble(split), split.result_handles(),
           &Response::mutable_disassemble_into_single_device_arrays_response);
      return true;
    }
    case Request::kFullyReplicatedShardRequest: {
      const auto& take = request.fully_replicated_shard_request();
      one(FullyReplicatedShard(take), take.result_handle(), &Response::mutable_fully_replicated_shard_response);
      return true;
    }
    case Request::kCopyArraysRequest: {
      const auto& copy = request.copy_arrays_request();
      many(Copy(copy), copy.result_handles(), &Response::mutable_copy_arrays_response);
      return true;
    }
    case Request::kRemapArraysRequest: {
      const auto& remap = request.remap_arrays_request();
      many(Remap(remap), remap.result_handles(), &Response::mutable_remap_arrays_response);
      return true;
    }
    case Request::kReshardArraysRequest: {
      const auto& reshard = request.reshard_arrays_request();
      many(Reshard(reshard), reshard.result_handles(), &Response::mutable_reshard_arrays_response);
      return true;
    }
    case Request::kBitcastArraysRequest: {
      const auto& bitcast = request.bitcast_arrays_request();
      many(Bitcast(bitcast), bitcast.result_handles(), &Response::mutable_bitcast_arrays_response);
      return true;
    }
    default:
      return false;
  }
}

absl::Status Dispatcher::Assemble(const wire::AssembleArrayFromSingleDeviceArraysRequest& request) {
  const runtime::Handle result = request.result_handle();
  PARKWAY_RETURN_IF_ERROR(CheckClientHandles({&result, 1}));
  auto decode = [&]() -> absl::StatusOr<runtime::ArraySpec> {
    if (request.has_dtype()) return DecodeSpec(request.dtype(), request.shape(), request.sharding());
    // Older clients leave the type to the inputs.
    if (request.single_device_array_handles().empty()) {
      return absl::InvalidArgumentError("an array of no type and no inputs");
    }
    PARKWAY_ASSIGN_OR_RETURN(runtime::ArraySpec input,
                             options_.session->Describe(request.single_device_array_handles(0)));
    xla::ifrt::DTypeProto dtype;
    ifrt::EncodeDType(input.dtype, &dtype);
    return DecodeSpec(dtype, request.shape(), request.sharding());
  };
  absl::StatusOr<runtime::ArraySpec> spec = decode();
  absl::StatusOr<runtime::CopySemantics> semantics = DecodeSemantics(request.copy_semantics());
  if (!spec.ok()) return FailArrays({&result, 1}, spec.status());
  if (!semantics.ok()) return FailArrays({&result, 1}, semantics.status());
  return options_.session->Assemble(result, *spec, request.single_device_array_handles(), *semantics);
}

absl::Status Dispatcher::Disassemble(const wire::DisassembleIntoSingleDeviceArraysRequest& request) {
  const Handles results = request.result_handles();
  PARKWAY_RETURN_IF_ERROR(CheckClientHandles(results));
  absl::StatusOr<runtime::CopySemantics> semantics = DecodeSemantics(request.copy_semantics());
  if (!semantics.ok()) return FailArrays(results, semantics.status());
  return options_.session->Disassemble(request.array_handle(), results, *semantics);
}

absl::Status Dispatcher::FullyReplicatedShard(const wire::FullyReplicatedShardRequest& request) {
  const runtime::Handle result = request.result_handle();
  PARKWAY_RETURN_IF_ERROR(CheckClientHandles({&result, 1}));
  absl::StatusOr<runtime::CopySemantics> semantics = DecodeSemantics(request.copy_semantics());
  if (!semantics.ok()) return FailArrays({&result, 1}, semantics.status());
  return options_.session->FullyReplicatedShard(request.array_handle(), result, *semantics);
}

absl::Status Dispatcher::Copy(const wire::CopyArraysRequest& request) {
  const Handles results = request.result_handles();
  PARKWAY_RETURN_IF_ERROR(CheckClientHandles(results));
  ifrt::DeviceListPtr devices;
  std::optional<std::string> memory_kind;
  runtime::CopySemantics semantics{};
  auto decode = [&]() -> absl::Status {
    PARKWAY_RETURN_IF_ERROR(CheckCount("copying", request.array_handles_size(), request.result_handles_size()));
    PARKWAY_ASSIGN_OR_RETURN(semantics, DecodeSemantics(request.copy_semantics()));
    if (!request.device_ids().empty()) {
      PARKWAY_ASSIGN_OR_RETURN(devices, ifrt::DeviceList::Make(request.device_ids()));
      for (int32_t id : devices->ids()) PARKWAY_RETURN_IF_ERROR(CheckDevice(id));
    }
    if (request.has_memory_kind()) {
      if (!IsMemoryKind(request.memory_kind())) {
        return absl::InvalidArgumentError(absl::StrCat("there is no memory kind ", request.memory_kind()));
      }
      memory_kind = request.memory_kind();
    }
    return absl::OkStatus();
  };
  if (absl::Status status = decode(); !status.ok()) return FailArrays(results, status);
  return options_.session->Copy(request.array_handles(), results, std::move(devices), std::move(memory_kind),
                                semantics);
}

absl::Status Dispatcher::Remap(const wire::RemapArraysRequest& request) {
  const Handles results = request.result_handles();
  PARKWAY_RETURN_IF_ERROR(CheckClientHandles(results));
  absl::StatusOr<runtime::CopySemantics> semantics = DecodeSemantics(request.copy_semantics());
  if (!semantics.ok()) return FailArrays(results, semantics.status());
  absl::StatusOr<ifrt::RemapPlan> plan = ifrt::DecodeRemapPlan(request.plan());
  if (!plan.ok()) return FailArrays(results, plan.status());
  for (const ifrt::RemapOutput& output : plan->outputs) {
    if (absl::Status status = CheckPlace(*output.spec.sharding); !status.ok()) return FailArrays(results, status);
  }
  return options_.session->Remap(request.array_handles(), results, std::move(plan->outputs), *semantics);
}

absl::Status Dispatcher::Reshard(const wire::ReshardArraysRequest& request) {
  const Handles results = request.result_handles();
  PARKWAY_RETURN_IF_ERROR(CheckClientHandles(results));
  absl::StatusOr<runtime::CopySemantics> semantics = DecodeSemantics(request.copy_semantics());
  if (!semantics.ok()) return FailArrays(results, semantics.status());
  absl::StatusOr<std::vector<runtime::ArraySpec>> specs = DecodeSpecs(request.array_specs());
  if (!specs.ok()) return FailArrays(results, specs.status());
  return options_.session->Reshard(request.array_handles(), results, *std::move(specs), *semantics);
}

absl::Status Dispatcher::Bitcast(const wire::BitcastArraysRequest& request) {
  const Handles results = request.result_handles();
  PARKWAY_RETURN_IF_ERROR(CheckClientHandles(results));
  absl::StatusOr<runtime::CopySemantics> semantics = DecodeSemantics(request.copy_semantics());
  if (!semantics.ok()) return FailArrays(results, semantics.status());
  absl::StatusOr<std::vector<runtime::ArraySpec>> specs = DecodeSpecs(request.array_specs());
  if (!specs.ok()) return FailArrays(results, specs.status());
  return options_.session->Bitcast(request.array_handles(), results, *std::move(specs), *semantics);
}

}  // namespace parkway::proxy
