#include "proxy/plugin_program.h"

#include <algorithm>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/limits.h"
#include "base/status.h"
#include "ifrt/sharding_wire.h"

namespace parkway::proxy {
namespace {

using Json = nlohmann::json;

constexpr absl::string_view kPrefix = "__serialized_plugin_program ";

absl::Status Bad(absl::string_view where, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("Bad PluginProgram: ", where, ": ", what));
}

// How deep the brackets of a text go, those in strings aside.
int Depth(absl::string_view text) {
  int depth = 0;
  int deepest = 0;
  bool quoted = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (quoted && c == '\\') {
      ++i;
    } else if (c == '"') {
      quoted = !quoted;
    } else if (!quoted && (c == '[' || c == '{')) {
      deepest = std::max(deepest, ++depth);
    } else if (!quoted && (c == ']' || c == '}')) {
      --depth;
    }
  }
  return deepest;
}

absl::StatusOr<Json> Parse(absl::string_view text) {
  if (Depth(text) > limits::kMaxPluginProgramDepth) {
    return Bad("the program", absl::StrCat("its JSON is over ", limits::kMaxPluginProgramDepth, " deep"));
  }
  Json json = Json::parse(text.begin(), text.end(), nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded()) return Bad("the program", "it is no JSON");
  return json;
}

absl::Status CheckObject(const Json& json, absl::string_view where, std::initializer_list<absl::string_view> known) {
  if (!json.is_object()) return Bad(where, "expected an object");
  for (const auto& [key, value] : json.items()) {
    if (std::find(known.begin(), known.end(), key) == known.end()) {
      return Bad(where, absl::StrCat("unknown field \"", absl::Utf8SafeCEscape(key), "\""));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<ifrt::DeviceListPtr> DecodeDevices(const Json& entry, absl::string_view where) {
  auto devices = entry.find("devices");
  if (devices == entry.end()) return Bad(where, "it names no devices");
  PARKWAY_RETURN_IF_ERROR(CheckObject(*devices, absl::StrCat(where, ".devices"), {"device_ids"}));
  auto list = devices->find("device_ids");
  if (list == devices->end() || !list->is_array() || list->empty()) {
    return Bad(where, "devices.device_ids has to be a list of device ids");
  }
  std::vector<int32_t> ids;
  ids.reserve(list->size());
  for (const Json& id : *list) {
    if (!id.is_number_unsigned() || id.get<uint64_t>() > INT32_MAX) {
      return Bad(where, absl::StrCat("position ", ids.size(), " of device_ids has no device id"));
    }
    ids.push_back(id.get<int32_t>());
  }
  absl::StatusOr<ifrt::DeviceListPtr> made = ifrt::DeviceList::Make(ids);
  if (!made.ok()) return Bad(where, made.status().message());
  return made;
}

// A text field of an entry; empty where there is none.
absl::StatusOr<std::string> DecodeText(const Json& entry, const char* field, absl::string_view where) {
  auto text = entry.find(field);
  if (text == entry.end()) return std::string();
  if (!text->is_string()) return Bad(where, absl::StrCat(field, " has to be a string"));
  return text->get<std::string>();
}

// Does it say which part of an array each device has, so that bytes alone are moved?
bool IsPlaced(const ifrt::Sharding& sharding) {
  const auto& groups = sharding.subgroups();
  switch (sharding.kind()) {
    case ifrt::Sharding::Kind::kSingle:
    case ifrt::Sharding::Kind::kReplicated:
      return true;
    case ifrt::Sharding::Kind::kTiled:
      return std::all_of(groups.begin(), groups.end(),
                         [](ifrt::Sharding::Subgroup group) { return group == ifrt::Sharding::Subgroup::kReplicated; });
    default:
      return false;
  }
}

absl::StatusOr<ifrt::ShardingPtr> DecodeSharding(const Json& entry, absl::string_view where) {
  PARKWAY_RETURN_IF_ERROR(CheckObject(entry, where, {"devices", "xla_hlo_sharding", "memory_kind"}));
  PARKWAY_ASSIGN_OR_RETURN(ifrt::DeviceListPtr devices, DecodeDevices(entry, where));
  PARKWAY_ASSIGN_OR_RETURN(std::string base64, DecodeText(entry, "xla_hlo_sharding", where));
  PARKWAY_ASSIGN_OR_RETURN(std::string kind, DecodeText(entry, "memory_kind", where));
  std::string bytes;
  xla::OpSharding proto;  // no bytes at all are the replicated one
  if (!absl::Base64Unescape(base64, &bytes) || !proto.ParseFromString(bytes)) {
    return Bad(where, "xla_hlo_sharding is no OpSharding in base64");
  }
  ifrt::MemoryKind memory;
  if (!kind.empty()) memory = std::move(kind);
  absl::StatusOr<ifrt::ShardingPtr> sharding = ifrt::DecodeOpSharding(proto, std::move(devices), std::move(memory));
  if (!sharding.ok()) return Bad(where, sharding.status().message());
  if (!IsPlaced(**sharding)) {
    return Bad(where, absl::StrCat("a reshard moves bytes: ", (*sharding)->ToString(),
                                   " doesn't say which part of the array each device has"));
  }
  return sharding;
}

absl::StatusOr<std::vector<ifrt::ShardingPtr>> DecodeShardings(const Json& request, const char* field) {
  auto list = request.find(field);
  if (list == request.end() || !list->is_array() || list->empty()) {
    return Bad("reshardRequest", absl::StrCat(field, " has to be a list with an entry for each array"));
  }
  if (list->size() > limits::kMaxArgumentsPerLaunch) {
    return Bad("reshardRequest",
               absl::StrCat(list->size(), " arrays in ", field, "; at most ", limits::kMaxArgumentsPerLaunch));
  }
  std::vector<ifrt::ShardingPtr> shardings;
  shardings.reserve(list->size());
  for (const Json& entry : *list) {
    PARKWAY_ASSIGN_OR_RETURN(shardings.emplace_back(),
                             DecodeSharding(entry, absl::StrCat(field, "[", shardings.size(), "]")));
  }
  return shardings;
}

absl::StatusOr<runtime::ReshardRequest> DecodeReshard(const Json& json) {
  PARKWAY_RETURN_IF_ERROR(CheckObject(json, "reshardRequest", {"donateInput", "inSharding", "outSharding"}));
  runtime::ReshardRequest request;
  if (auto donate = json.find("donateInput"); donate != json.end()) {
    if (!donate->is_boolean()) return Bad("reshardRequest", "donateInput has to be true or false");
    request.donate = donate->get<bool>();
  }
  PARKWAY_ASSIGN_OR_RETURN(request.inputs, DecodeShardings(json, "inSharding"));
  PARKWAY_ASSIGN_OR_RETURN(request.outputs, DecodeShardings(json, "outSharding"));
  if (request.inputs.size() != request.outputs.size()) {
    return Bad("reshardRequest",
               absl::StrCat(request.inputs.size(), " arrays to ", request.outputs.size(), " shardings"));
  }
  for (const ifrt::ShardingPtr& input : request.inputs) {
    // A program has one number of devices, by which clients count the shards of its arguments.
    if (input->num_shards() == request.inputs[0]->num_shards()) continue;
    return Bad("reshardRequest",
               absl::StrCat("its arrays lie on ", request.inputs[0]->num_shards(), " and on ", input->num_shards(),
                            " devices; one request takes arrays on equally many"));
  }
  return request;
}

}  // namespace

absl::StatusOr<runtime::ReshardRequest> DecodePluginProgram(absl::string_view program) {
  if (program.size() > limits::kMaxPluginProgramBytes) {
    return Bad("the program", absl::StrCat(program.size(), " bytes; at most ", limits::kMaxPluginProgramBytes));
  }
  if (!absl::ConsumePrefix(&program, kPrefix)) return Bad("the program", "its first word is another");
  PARKWAY_ASSIGN_OR_RETURN(Json json, Parse(program));
  if (!json.is_object() || json.size() != 1) return Bad("the program", "expected an object with one request");
  const std::string& kind = json.begin().key();
  if (kind == "reshardRequest") return DecodeReshard(json.begin().value());
  if (kind == "profileRequest") {
    return absl::UnimplementedError(
        "Parkway takes no profiles of its engines yet (jax.profiler with pathwaysutils initialized)");
  }
  if (kind == "persistenceWriteRequest" || kind == "persistenceReadRequest" ||
      kind == "bulk_persistence_write_request" || kind == "bulk_persistence_read_request") {
    return absl::UnimplementedError(
        "Parkway's hosts write and read no checkpoints yet: unset ENABLE_PATHWAYS_PERSISTENCE, and the client does");
  }
  return Bad("the program", absl::StrCat("unknown request \"", absl::Utf8SafeCEscape(kind), "\""));
}

}  // namespace parkway::proxy
