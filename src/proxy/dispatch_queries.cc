#include <utility>

#include "absl/strings/str_cat.h"
#include "base/limits.h"
#include "base/status.h"
#include "ifrt/type_wire.h"
#include "proxy/dispatcher.h"
#include "proxy/init_response.h"

namespace parkway::proxy {

namespace wire = xla::ifrt::proxy;

bool Dispatcher::HandleQueries(const Request& request) {
  switch (request.request_case()) {
    case Request::kInitRequest: {
      Reply reply = MakeReply(request, Reply::Kind::kAwaited);
      FillInitResponse(*options_.topology, options_.session_id, reply.message()->mutable_init_response());
      reply.Ok();
      return true;
    }
    case Request::kCheckValueReadyRequest: {
      Reply reply = MakeReply(request, Reply::Kind::kAwaited);
      const Handles values = request.check_value_ready_request().value_handles();
      options_.session->WhenReady(values, [reply = std::move(reply)](const absl::Status& status) mutable {
        if (!status.ok()) return reply.Fail(status);
        reply.message()->mutable_check_value_ready_response();
        reply.Ok();
      });
      return true;
    }
    case Request::kIsArrayDeletedRequest: {
      Reply reply = MakeReply(request, Reply::Kind::kAwaited);
      absl::StatusOr<bool> deleted = options_.session->IsDeleted(request.is_array_deleted_request().array_handle());
      reply.message()->mutable_is_array_deleted_response()->set_deleted(deleted.ok() && *deleted);
      deleted.ok() ? reply.Ok() : reply.Fail(deleted.status());
      return true;
    }
    case Request::kGetDefaultLayoutRequest:
      DefaultLayout(request.get_default_layout_request(), MakeReply(request, Reply::Kind::kAwaited));
      return true;
    case Request::kGetDefaultDeviceAssignmentRequest:
      DefaultDeviceAssignment(request.get_default_device_assignment_request(),
                              MakeReply(request, Reply::Kind::kAwaited));
      return true;
    default:
      return false;
  }
}

void Dispatcher::DefaultLayout(const wire::GetDefaultLayoutRequest& request, Reply reply) {
  auto check = [&]() -> absl::Status {
    PARKWAY_RETURN_IF_ERROR(ifrt::DecodeDType(request.dtype()).status());
    PARKWAY_RETURN_IF_ERROR(ifrt::Shape::Make(request.dims()).status());
    PARKWAY_RETURN_IF_ERROR(CheckDevice(request.device_id()));
    if (!request.memory_kind().empty() && !IsMemoryKind(request.memory_kind())) {
      return absl::InvalidArgumentError(absl::StrCat("there is no memory kind ", request.memory_kind()));
    }
    return absl::OkStatus();
  };
  if (absl::Status status = check(); !status.ok()) return reply.Fail(Annotate(status, "default layout"));
  reply.message()->mutable_get_default_layout_response()->set_serialized_pjrt_layout(
      ifrt::Layout::RowMajor(request.dims_size()).ToString());
  reply.Ok();
}

void Dispatcher::DefaultDeviceAssignment(const wire::GetDefaultDeviceAssignmentRequest& request, Reply reply) {
  const uint64_t have = options_.topology->devices().size();
  const uint64_t replicas = request.num_replicas(), partitions = request.num_partitions();
  if (replicas == 0 || partitions == 0 || replicas > have || partitions > have / replicas) {
    return reply.Fail(absl::InvalidArgumentError(
        absl::StrCat(replicas, " replicas of ", partitions, " partitions don't fit on ", have, " devices")));
  }
  auto* assignment = reply.message()->mutable_get_default_device_assignment_response()->mutable_device_assignment();
  assignment->set_replica_count(static_cast<int>(replicas));
  assignment->set_computation_count(static_cast<int>(partitions));
  for (uint64_t partition = 0; partition < partitions; ++partition) {
    auto* devices = assignment->add_computation_devices();
    for (uint64_t replica = 0; replica < replicas; ++replica) {
      devices->add_replica_device_ids(static_cast<int64_t>(replica * partitions + partition));
    }
  }
  reply.Ok();
}

}  // namespace parkway::proxy
