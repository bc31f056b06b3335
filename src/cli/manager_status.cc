#include "cli/manager_status.h"

#include <grpcpp/grpcpp.h>

#include <chrono>

#include "absl/strings/str_cat.h"
#include "proto/parkway/manager.grpc.pb.h"

namespace parkway::cli {

absl::StatusOr<ManagerStatus> FetchManagerStatus(const std::string& address, absl::Duration at_most) {
  const auto stub = Manager::NewStub(grpc::CreateChannel(address, grpc::InsecureChannelCredentials()));
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + absl::ToChronoMilliseconds(at_most));
  ManagerStatus reply;
  const grpc::Status status = stub->Status(&context, ManagerStatusRequest(), &reply);
  if (status.ok()) return reply;
  return absl::UnavailableError(absl::StrCat("no manager answers at ", address, ": ", status.error_message()));
}

absl::Status CancelPrograms(const std::string& address, uint64_t lease_epoch, uint64_t session,
                            absl::Duration at_most) {
  const auto stub = Manager::NewStub(grpc::CreateChannel(address, grpc::InsecureChannelCredentials()));
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + absl::ToChronoMilliseconds(at_most));
  CancelRequest request;
  request.set_lease_epoch(lease_epoch);
  request.mutable_what()->set_session(session);
  CancelReply reply;
  const grpc::Status status = stub->Cancel(&context, request, &reply);
  if (status.ok()) return absl::OkStatus();
  if (status.error_code() == grpc::StatusCode::NOT_FOUND) return absl::NotFoundError(status.error_message());
  return absl::UnavailableError(absl::StrCat("the manager at ", address, " does not cancel: ", status.error_message()));
}

}  // namespace parkway::cli
