#include "base/status_wire.h"

#include <string>

#include "proto/parkway/engine.pb.h"

namespace parkway {
namespace {

// Protobuf refuses to send a string field that is not UTF-8.
std::string ToUtf8(absl::string_view text) {
  std::string result;
  result.reserve(text.size());
  for (size_t i = 0; i < text.size();) {
    const auto byte = [&](size_t at) { return static_cast<unsigned char>(at < text.size() ? text[at] : 0); };
    const unsigned char first = byte(i);
    const size_t length = first < 0x80 ? 1 : first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : 2;
    // Second bytes that keep away overlong forms, surrogates and what lies beyond U+10FFFF.
    const unsigned char low = first == 0xE0 ? 0xA0 : first == 0xF0 ? 0x90 : 0x80;
    const unsigned char high = first == 0xED ? 0x9F : first == 0xF4 ? 0x8F : 0xBF;
    bool valid = first < 0x80 || (first >= 0xC2 && first <= 0xF4 && byte(i + 1) >= low && byte(i + 1) <= high);
    for (size_t k = 2; valid && k < length; ++k) valid = (byte(i + k) & 0xC0) == 0x80;
    if (valid) {
      result.append(text.data() + i, length);
      i += length;
    } else {
      result.push_back('?');
      ++i;
    }
  }
  return result;
}

}  // namespace

absl::Status FromProto(const StatusProto& proto) {
  if (proto.code() == 0) return absl::OkStatus();
  const bool known = proto.code() > 0 && proto.code() <= static_cast<int>(absl::StatusCode::kUnauthenticated);
  return absl::Status(known ? static_cast<absl::StatusCode>(proto.code()) : absl::StatusCode::kUnknown,
                      proto.message());
}

StatusProto ToProto(const absl::Status& status) {
  StatusProto proto;
  proto.set_code(static_cast<int>(status.code()));
  proto.set_message(ToUtf8(status.message()));
  return proto;
}

}  // namespace parkway
