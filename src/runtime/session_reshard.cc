// Reshards that a client compiles once and executes like a program (pathwaysutils' reshardRequest). No engine knows of
// an executable: each execution is a move of each argument, which the session orders like any other.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "runtime/session_impl.h"

namespace parkway::runtime {
namespace {

constexpr absl::string_view kName = "reshard";
// No layout can be told before the arrays are known. Clients want one for each output, or an error, which this becomes.
constexpr char kNoLayout[] = "depends on the array";

// The array as lying like `sharding`, which it fits. A concrete sharding doesn't say itself where its shards lie.
ArrayRecord LyingAs(const ArrayRecord& array, const ifrt::ShardingPtr& sharding) {
  const ifrt::Sharding::Kind kind = array.spec.sharding->kind();
  if (kind != ifrt::Sharding::Kind::kConcrete && kind != ifrt::Sharding::Kind::kConcreteEven) return array;
  ArrayRecord placed{ArraySpec{array.spec.dtype, array.spec.shape, sharding}, array.whole, {}};
  if (array.whole != nullptr) return placed;
  for (int32_t device : sharding->devices()->ids()) {
    placed.shards.push_back(array.shards[*array.spec.sharding->devices()->Position(device)]);
  }
  return placed;
}

}  // namespace

absl::StatusOr<CompileReply> SessionImpl::CompileReshard(ReshardRequest request) {
  CompiledProgram described;
  described.set_name(std::string(kName));
  for (size_t i = 0; i < request.inputs.size(); ++i) {
    if (request.donate) described.add_donated(static_cast<int>(i));
    described.add_parameter_layouts(kNoLayout);
    described.add_output_layouts(kNoLayout);
    absl::StrAppend(described.mutable_text(), "array ", i, ": ", request.inputs[i]->ToString(), " on devices ",
                    request.inputs[i]->devices()->ToString(), " to ", request.outputs[i]->ToString(), " on devices ",
                    request.outputs[i]->devices()->ToString(), "\n");
  }
  auto program = std::make_unique<ReshardProgram>();
  program->accepted = request.inputs;
  program->request = std::move(request);
  program->described = std::make_shared<const CompiledProgram>(std::move(described));
  const Handle handle = NewHandle();
  reshards_[handle] = std::move(program);
  PARKWAY_ASSIGN_OR_RETURN(CompileReply reply, Executable(handle));
  reply.ready_future = NewFuture(true);
  return reply;
}

absl::StatusOr<ArrayRecord> SessionImpl::ReshardArgument(ReshardProgram& program, int index, Handle array) {
  const std::string what = absl::StrCat(kName, ": argument ", index);
  PARKWAY_ASSIGN_OR_RETURN(ArrayRecord * found, Find(array, what));
  const ArraySpec& spec = found->spec;
  const ifrt::ShardingPtr& wanted = program.request.inputs[index];
  if (spec.dtype == ifrt::DType::kString) {
    return absl::UnimplementedError(absl::StrCat(what, ": arrays of strings have no shards on devices to move"));
  }
  if (!program.outputs.empty()) {
    const ArraySpec& first = program.outputs[index];
    if (spec.dtype != first.dtype || !(spec.shape == first.shape)) {
      return absl::InvalidArgumentError(absl::StrCat(what, " is ", DescribeSpec(spec), ", but was ",
                                                     DescribeSpec(first), " when this program ran first"));
    }
  }
  if (spec.sharding != program.accepted[index]) {
    if (!spec.sharding->Fits(*wanted, spec.shape)) {
      return absl::InvalidArgumentError(
          absl::StrCat(what, " (", DescribeSpec(spec), ") lies on devices ", spec.sharding->devices()->ToString(),
                       " as ", spec.sharding->ToString(), ", but the program was compiled for ", wanted->ToString(),
                       " on devices ", wanted->devices()->ToString()));
    }
    program.accepted[index] = spec.sharding;
  }
  // Both must be able to cut this shape, before anything moves.
  PARKWAY_RETURN_IF_ERROR(Annotate(wanted->ShardShape(spec.shape).status(), what));
  PARKWAY_RETURN_IF_ERROR(Annotate(program.request.outputs[index]->ShardShape(spec.shape).status(), what));
  return LyingAs(*found, wanted);
}

absl::StatusOr<std::vector<ArrayRecord>> SessionImpl::ReshardAll(ReshardProgram& program,
                                                                 const ExecuteRequest& request) {
  const size_t count = program.request.inputs.size();
  if (request.arguments.size() != count || (!request.results.empty() && request.results.size() != count)) {
    return absl::InvalidArgumentError(absl::StrCat(kName, " of ", count, " arrays: ", request.arguments.size(),
                                                   " arguments and ", request.results.size(),
                                                   " result handles were given"));
  }
  PARKWAY_RETURN_IF_ERROR(CheckNewHandles(request.results));
  std::vector<ArrayRecord> arguments;
  for (size_t i = 0; i < count; ++i) {
    PARKWAY_ASSIGN_OR_RETURN(arguments.emplace_back(),
                             ReshardArgument(program, static_cast<int>(i), request.arguments[i]));
  }
  std::vector<ArrayRecord> outputs;
  for (size_t i = 0; i < count; ++i) {
    const ArraySpec& from = arguments[i].spec;
    PARKWAY_ASSIGN_OR_RETURN(outputs.emplace_back(),
                             ReshardOne(arguments[i], ArraySpec{from.dtype, from.shape, program.request.outputs[i]}));
  }
  return outputs;
}

absl::StatusOr<ExecuteReply> SessionImpl::ExecuteReshard(ReshardProgram& program, const ExecuteRequest& request) {
  absl::StatusOr<std::vector<ArrayRecord>> outputs = ReshardAll(program, request);
  if (!outputs.ok()) return FailResults(request.results, program.outputs, outputs.status());
  const bool first = program.outputs.empty();
  ExecuteReply reply;
  std::vector<Handle> handles;
  for (size_t i = 0; i < outputs->size(); ++i) {
    ArrayRecord& output = (*outputs)[i];
    handles.push_back(request.results.empty() ? NewHandle() : request.results[i]);
    reply.outputs.push_back(ExecuteReply::Output{output.spec, handles.back()});
    if (first) program.outputs.push_back(output.spec);
    Put(handles.back(), std::move(output));
  }
  if (program.request.donate) {
    for (size_t i = 0; i < request.arguments.size(); ++i) {
      if (std::find(request.non_donatable.begin(), request.non_donatable.end(), static_cast<int>(i)) !=
          request.non_donatable.end()) {
        continue;
      }
      FinishInput(request.arguments[i], CopySemantics::kDonateInput);
    }
  }
  if (request.fill_status) {
    reply.status_handle = request.status_handle != 0 ? request.status_handle : NewHandle();
    auto future = std::make_shared<Future>();
    futures_[reply.status_handle] = future;
    WhenReady(handles, [future](absl::Status status) { Settle(*future, std::move(status)); });
  }
  return reply;
}

}  // namespace parkway::runtime
