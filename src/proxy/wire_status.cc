#include "proxy/wire_status.h"

#include <string>

namespace parkway::proxy {

void EncodeStatus(const absl::Status& status, tensorflow::StatusProto* proto) {
  proto->set_code(static_cast<tensorflow::error::Code>(status.code()));
  proto->set_message(std::string(status.message()));
}

absl::Status DecodeStatus(const tensorflow::StatusProto& proto) {
  const int code = proto.code();
  const bool known = code >= 0 && code <= static_cast<int>(absl::StatusCode::kUnauthenticated);
  return absl::Status(known ? static_cast<absl::StatusCode>(code) : absl::StatusCode::kUnknown, proto.message());
}

}  // namespace parkway::proxy
