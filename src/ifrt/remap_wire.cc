#include "ifrt/remap_wire.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/limits.h"
#include "base/status.h"
#include "ifrt/type_wire.h"

namespace parkway::ifrt {
namespace {

using xla::ifrt::RemapPlanProto;

absl::Status Invalid(absl::string_view text) { return absl::InvalidArgumentError(absl::StrCat("remap: ", text)); }

struct Interval {
  int64_t start, end, step;
  int64_t count() const { return (end - start) / step + ((end - start) % step != 0 ? 1 : 0); }
};

// A plan on its way: sources of -1 are not set yet.
class Builder {
 public:
  explicit Builder(RemapPlan* plan) : plan_(plan) {
    for (RemapOutput& output : plan_->outputs) {
      output.sources.assign(output.spec.sharding->num_shards(), RemapSource{-1, -1});
    }
  }

  absl::Status Add(const RemapPlanProto::MappingProto& mapping);
  absl::Status Add(const RemapPlanProto::InputDevicesForOutput& devices);
  absl::Status CheckComplete() const;

 private:
  absl::Status CheckPair(int in_array, int out_array) const;
  absl::Status Set(int in_array, int input_shard, int out_array, int output_shard);

  RemapPlan* plan_;
};

absl::Status Builder::CheckPair(int in_array, int out_array) const {
  if (in_array < 0 || static_cast<size_t>(in_array) >= plan_->inputs.size()) {
    return Invalid(absl::StrCat("input ", in_array, " of ", plan_->inputs.size()));
  }
  if (out_array < 0 || static_cast<size_t>(out_array) >= plan_->outputs.size()) {
    return Invalid(absl::StrCat("output ", out_array, " of ", plan_->outputs.size()));
  }
  const ArraySpec& in = plan_->inputs[in_array];
  const ArraySpec& out = plan_->outputs[out_array].spec;
  if (in.dtype != out.dtype) {
    return Invalid(absl::StrCat("output ", out_array, " of type ", Name(out.dtype), " from input ", in_array,
                                " of type ", Name(in.dtype)));
  }
  return absl::OkStatus();
}

absl::Status Builder::Set(int in_array, int input_shard, int out_array, int output_shard) {
  const ArraySpec& in = plan_->inputs[in_array];
  const ArraySpec& out = plan_->outputs[out_array].spec;
  const auto where = [&] {
    return absl::StrCat("shard ", output_shard, " of output ", out_array, " from shard ", input_shard, " of input ",
                        in_array);
  };
  RemapSource& source = plan_->outputs[out_array].sources[output_shard];
  if (source.input >= 0) return Invalid(absl::StrCat(where(), ": it is given twice"));
  const int from = in.sharding->devices()->id(input_shard);
  const int to = out.sharding->devices()->id(output_shard);
  if (from != to) return Invalid(absl::StrCat(where(), ": it lies on device ", from, ", not on ", to));
  PARKWAY_ASSIGN_OR_RETURN(const Shape in_shape, in.sharding->ShardShape(in.shape, input_shard));
  PARKWAY_ASSIGN_OR_RETURN(const Shape out_shape, out.sharding->ShardShape(out.shape, output_shard));
  if (!(in_shape == out_shape)) {
    return Invalid(absl::StrCat(where(), ": its shape is ", in_shape.ToString(), ", not ", out_shape.ToString()));
  }
  source = {in_array, input_shard};
  return absl::OkStatus();
}

absl::StatusOr<Interval> MakeInterval(int64_t start, int64_t end, int64_t step, int64_t num_shards) {
  if (start < 0 || end < start || end > num_shards || step < 1) {
    return Invalid(
        absl::StrCat("the interval [", start, ":", end, ":", step, "] of an array of ", num_shards, " shards"));
  }
  return Interval{start, end, step};
}

absl::Status Builder::Add(const RemapPlanProto::MappingProto& mapping) {
  PARKWAY_RETURN_IF_ERROR(CheckPair(mapping.in_array(), mapping.out_array()));
  const int n = mapping.from_start_size();
  if (mapping.from_end_size() != n || mapping.from_step_size() != n || mapping.to_start_size() != n ||
      mapping.to_end_size() != n || mapping.to_step_size() != n) {
    return Invalid("a mapping whose lists of starts, ends and steps differ in length");
  }
  const int64_t in_shards = plan_->inputs[mapping.in_array()].sharding->num_shards();
  const int64_t out_shards = plan_->outputs[mapping.out_array()].spec.sharding->num_shards();
  for (int i = 0; i < n; ++i) {
    PARKWAY_ASSIGN_OR_RETURN(const Interval from,
                             MakeInterval(mapping.from_start(i), mapping.from_end(i), mapping.from_step(i), in_shards));
    PARKWAY_ASSIGN_OR_RETURN(const Interval to,
                             MakeInterval(mapping.to_start(i), mapping.to_end(i), mapping.to_step(i), out_shards));
    if (from.count() != to.count()) {
      return Invalid(absl::StrCat("a mapping of ", from.count(), " shards to ", to.count()));
    }
    for (int64_t k = 0; k < to.count(); ++k) {
      PARKWAY_RETURN_IF_ERROR(Set(mapping.in_array(), static_cast<int>(from.start + k * from.step), mapping.out_array(),
                                  static_cast<int>(to.start + k * to.step)));
    }
  }
  return absl::OkStatus();
}

absl::Status Builder::Add(const RemapPlanProto::InputDevicesForOutput& devices) {
  for (const auto& from : devices.input_devices()) {
    PARKWAY_RETURN_IF_ERROR(CheckPair(from.in_array(), devices.out_array()));
    const DeviceList& in = *plan_->inputs[from.in_array()].sharding->devices();
    const DeviceList& out = *plan_->outputs[devices.out_array()].spec.sharding->devices();
    for (int32_t id : from.device_list().device_ids()) {
      const std::optional<int> input_shard = in.Position(id);
      const std::optional<int> output_shard = out.Position(id);
      if (!input_shard || !output_shard) {
        return Invalid(absl::StrCat("device ", id, ", which is not among those of ", input_shard ? "output " : "input ",
                                    input_shard ? devices.out_array() : from.in_array()));
      }
      PARKWAY_RETURN_IF_ERROR(Set(from.in_array(), *input_shard, devices.out_array(), *output_shard));
    }
  }
  return absl::OkStatus();
}

absl::Status Builder::CheckComplete() const {
  for (size_t out = 0; out < plan_->outputs.size(); ++out) {
    const std::vector<RemapSource>& sources = plan_->outputs[out].sources;
    auto missing = std::find(sources.begin(), sources.end(), RemapSource{-1, -1});
    if (missing != sources.end()) {
      return Invalid(absl::StrCat("shard ", missing - sources.begin(), " of output ", out, " comes from nowhere"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<RemapPlan> DecodeRemapPlan(const RemapPlanProto& proto) {
  if (proto.input_specs_size() > limits::kMaxHandlesPerRequest ||
      proto.output_specs_size() > limits::kMaxHandlesPerRequest) {
    return Invalid(absl::StrCat("a plan of ", proto.input_specs_size(), " inputs and ", proto.output_specs_size(),
                                " outputs, the most is ", limits::kMaxHandlesPerRequest));
  }
  RemapPlan plan;
  for (const auto& spec : proto.input_specs()) {
    PARKWAY_ASSIGN_OR_RETURN(plan.inputs.emplace_back(), DecodeArraySpec(spec));
  }
  for (const auto& spec : proto.output_specs()) {
    PARKWAY_ASSIGN_OR_RETURN(plan.outputs.emplace_back().spec, DecodeArraySpec(spec));
  }
  Builder builder(&plan);
  // Clients between the two versions send both, saying the same.
  if (proto.input_devices_for_output_size() > 0) {
    for (const auto& devices : proto.input_devices_for_output()) PARKWAY_RETURN_IF_ERROR(builder.Add(devices));
  } else {
    for (const auto& mapping : proto.mappings()) PARKWAY_RETURN_IF_ERROR(builder.Add(mapping));
  }
  PARKWAY_RETURN_IF_ERROR(builder.CheckComplete());
  return plan;
}

}  // namespace parkway::ifrt
