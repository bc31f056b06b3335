#include "engine/jaxlib/program.h"

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/wire_format_lite.h>

#include "absl/strings/str_cat.h"

namespace parkway::engine {
namespace {

using google::protobuf::internal::WireFormatLite;
using google::protobuf::io::CodedInputStream;

// Calls `read` with the number and payload of every length-delimited field, and with the value of every varint.
template <typename OnBytes, typename OnVarint>
void ForEachField(std::string_view message, OnBytes on_bytes, OnVarint on_varint) {
  CodedInputStream stream(reinterpret_cast<const uint8_t*>(message.data()), static_cast<int>(message.size()));
  while (uint32_t tag = stream.ReadTag()) {
    const int field = WireFormatLite::GetTagFieldNumber(tag);
    if (WireFormatLite::GetTagWireType(tag) == WireFormatLite::WIRETYPE_LENGTH_DELIMITED) {
      uint32_t size = 0;
      if (!stream.ReadVarint32(&size)) return;
      const size_t at = stream.CurrentPosition();
      if (size > message.size() - at || !stream.Skip(static_cast<int>(size))) return;
      on_bytes(field, message.substr(at, size));
    } else if (WireFormatLite::GetTagWireType(tag) == WireFormatLite::WIRETYPE_VARINT) {
      uint64_t value = 0;
      if (!stream.ReadVarint64(&value)) return;
      on_varint(field, value);
    } else if (!WireFormatLite::SkipField(&stream, tag)) {
      return;
    }
  }
}

// The field numbers of xla/service/hlo.proto.
constexpr int kModuleInputOutputAlias = 8;
constexpr int kModuleBufferDonor = 18;
constexpr int kEntries = 1;  // of both
constexpr int kAliasParameter = 2;
constexpr int kDonorParameter = 1;

void MarkParameters(std::string_view entries, int parameter_field, std::vector<bool>& aliased) {
  auto nothing = [](int, auto) {};
  auto entry = [&](int field, std::string_view bytes) {
    if (field != kEntries) return;
    uint64_t parameter = 0;  // proto3 leaves a zero out
    ForEachField(bytes, nothing, [&](int number, uint64_t value) {
      if (number == parameter_field) parameter = value;
    });
    if (parameter < aliased.size()) aliased[parameter] = true;
  };
  ForEachField(entries, entry, nothing);
}

}  // namespace

absl::Status RefuseHostCallbacks(std::string_view program) {
  for (const std::string target :
       {"xla_ffi_python_cpu_callback", "xla_ffi_partitioned_python_cpu_callback", "xla_python_cpu_callback"}) {
    // As HloInstructionProto.custom_call_target (field 28), so that a function of that name is no reason.
    std::string field = absl::StrCat("\xe2\x01", std::string(1, static_cast<char>(target.size())), target);
    if (program.find(field) == program.npos) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "the program calls back into Python (custom call ", target,
        "), which doesn't run on Parkway's devices; take pure_callback, io_callback or debug prints out of it"));
  }
  return absl::OkStatus();
}

bool UsesLapack(std::string_view program) { return program.find("lapack_") != std::string_view::npos; }

std::vector<bool> AliasedParameters(std::string_view module, size_t parameters) {
  std::vector<bool> aliased(parameters, false);
  ForEachField(
      module,
      [&](int field, std::string_view bytes) {
        if (field == kModuleInputOutputAlias) MarkParameters(bytes, kAliasParameter, aliased);
        if (field == kModuleBufferDonor) MarkParameters(bytes, kDonorParameter, aliased);
      },
      [](int, uint64_t) {});
  return aliased;
}

}  // namespace parkway::engine
