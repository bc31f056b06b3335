#include "ifrt/attributes_wire.h"

#include "absl/strings/str_cat.h"

namespace parkway::ifrt {
namespace {

using Value = xla::ifrt::AttributeMapProto::Value;

struct Encoder {
  Value* proto;
  void operator()(const std::string& value) { proto->set_string_value(value); }
  void operator()(bool value) { proto->set_bool_value(value); }
  void operator()(int64_t value) { proto->set_int64_value(value); }
  void operator()(float value) { proto->set_float_value(value); }
  void operator()(const std::vector<int64_t>& value) {
    auto* elements = proto->mutable_int64_list_value()->mutable_elements();
    elements->Assign(value.begin(), value.end());
  }
};

}  // namespace

xla::ifrt::AttributeMapProto EncodeAttributes(const Attributes& attributes) {
  xla::ifrt::AttributeMapProto proto;
  for (const auto& [name, value] : attributes) std::visit(Encoder{&(*proto.mutable_attributes())[name]}, value);
  return proto;
}

absl::StatusOr<Attributes> DecodeAttributes(const xla::ifrt::AttributeMapProto& proto) {
  Attributes out;
  for (const auto& [name, value] : proto.attributes()) {
    switch (value.value_case()) {
      case Value::kStringValue:
        out[name] = value.string_value();
        break;
      case Value::kBoolValue:
        out[name] = value.bool_value();
        break;
      case Value::kInt64Value:
        out[name] = static_cast<int64_t>(value.int64_value());
        break;
      case Value::kInt64ListValue:
        out[name] = std::vector<int64_t>(value.int64_list_value().elements().begin(),
                                         value.int64_list_value().elements().end());
        break;
      case Value::kFloatValue:
        out[name] = value.float_value();
        break;
      case Value::VALUE_NOT_SET:
        return absl::InvalidArgumentError(absl::StrCat("attribute \"", name.substr(0, 64), "\" has no value"));
    }
  }
  return out;
}

}  // namespace parkway::ifrt
