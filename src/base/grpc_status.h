// absl::Status as gRPC's own: the codes are the same numbers. gRPC sends the text in a header, and a peer refuses
// headers of more than 8 KiB: a longer text loses its end.
#pragma once

#include <grpcpp/support/status.h>

#include <string>

#include "absl/status/status.h"
#include "base/limits.h"

namespace parkway {

inline grpc::Status ToGrpc(const absl::Status& status) {
  std::string text(status.message());
  if (text.size() > limits::kMaxStatusInHeader) text = text.substr(0, limits::kMaxStatusInHeader) + " ...";
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()), text);
}

}  // namespace parkway
