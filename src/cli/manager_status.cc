#include "cli/manager_status.h"

#include <grpcpp/grpcpp.h>

#include <chrono>

#include "absl/strings/str_cat.h"
#include "proto/parkway/manager.grpc.pb.h"

namespace parkway::cli {

absl::StatusOr<ManagerStatus> FetchManagerStatus(const std::string& address, absl::Duration at_most) {
  const auto channel = grpc::CreateChannel(address, grpc::InsecureChannelCredentials());
  const auto stub = Manager::NewStub(channel);
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + absl::ToChronoMilliseconds(at_most));
  ManagerStatus reply;
  const grpc::Status status = stub->Status(&context, ManagerStatusRequest(), &reply);
  if (status.ok()) return reply;
  return absl::UnavailableError(absl::StrCat("no manager answers at ", address, ": ", status.error_message()));
}

}  // namespace parkway::cli
