#include "proxy/dispatcher.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/limits.h"
#include "base/status.h"
#include "ifrt/type_wire.h"
#include "proxy/init_response.h"

namespace parkway::proxy {

namespace wire = xla::ifrt::proxy;

namespace {

constexpr runtime::Handle kFirstServerHandle = runtime::Handle{1} << 48;

// Why a request that Parkway knows of gets UNIMPLEMENTED.
const char* WhyUnimplemented(wire::IfrtRequest::RequestCase kind) {
  switch (kind) {
    case wire::IfrtRequest::kLoadedExecutableDeleteRequest:
    case wire::IfrtRequest::kLoadedExecutableIsDeletedRequest:
      return "executables are not deleted by themselves: drop the last reference to the compiled function";
    case wire::IfrtRequest::kLoadedExecutableMpmdMetadataRequest:
    case wire::IfrtRequest::kLoadedExecutableMpmdCostAnalysisRequest:
      return "Parkway runs no MPMD programs (IFRT IR): compile one program for each mesh";
    case wire::IfrtRequest::kLoadedHostCallbackPollRequest:
    case wire::IfrtRequest::kLoadedHostCallbackReturnRequest:
      return "host callbacks (jax.debug.print, jax.pure_callback, io_callback) don't work through an IFRT proxy client";
    default:
      return nullptr;
  }
}

}  // namespace

absl::Status CheckClientHandles(absl::Span<const runtime::Handle> handles) {
  if (handles.size() > limits::kMaxHandlesPerRequest) {
    return absl::InvalidArgumentError(
        absl::StrCat("a request names ", handles.size(), " handles; at most ", limits::kMaxHandlesPerRequest));
  }
  for (runtime::Handle handle : handles) {
    if (handle == 0 || handle >= kFirstServerHandle) {
      return absl::InvalidArgumentError(
          absl::StrCat("handle ", handle, " is none that a client may choose: they go from 1 to 2^48 - 1"));
    }
  }
  return absl::OkStatus();
}

Dispatcher::Dispatcher(Options options)
    : options_(std::move(options)), replies_(std::make_shared<ReplyState>(ReplyState{.sink = options_.sink})) {}

Dispatcher::~Dispatcher() { replies_->sink = nullptr; }

Reply Dispatcher::MakeReply(const Request& request, Reply::Kind kind) {
  return Reply(replies_, request.request_metadata(), kind);
}

void Dispatcher::Handle(const Request& request) {
  if (HandlePrograms(request) || HandleArrays(request) || HandleMoves(request) || HandleQueries(request)) return;
  HandleUnimplemented(request);
}

void Dispatcher::HandleUnimplemented(const Request& request) {
  const char* why = WhyUnimplemented(request.request_case());
  MakeReply(request, Reply::Kind::kAwaited)
      .Fail(why != nullptr ? absl::UnimplementedError(why)
                           : absl::InvalidArgumentError("the request is of no kind that this proxy knows"));
}

absl::Status Dispatcher::CheckDevice(int64_t id) const {
  if (id >= 0 && id <= INT32_MAX && options_.topology->IsDevice(static_cast<int>(id))) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("there is no device ", id, "; this proxy has ", options_.topology->devices().size()));
}

absl::Status Dispatcher::CheckPlace(const ifrt::Sharding& sharding) const {
  for (int32_t id : sharding.devices()->ids()) PARKWAY_RETURN_IF_ERROR(CheckDevice(id));
  if (sharding.memory_kind().has_value() && !IsMemoryKind(*sharding.memory_kind())) {
    return absl::InvalidArgumentError(absl::StrCat("there is no memory kind ", *sharding.memory_kind(),
                                                   "; devices have device, pinned_host and unpinned_host"));
  }
  return absl::OkStatus();
}

absl::StatusOr<runtime::ArraySpec> Dispatcher::DecodeSpec(const xla::ifrt::DTypeProto& dtype,
                                                          const xla::ifrt::ShapeProto& shape,
                                                          const xla::ifrt::ShardingProto& sharding) {
  runtime::ArraySpec spec;
  PARKWAY_ASSIGN_OR_RETURN(spec.dtype, ifrt::DecodeDType(dtype));
  PARKWAY_ASSIGN_OR_RETURN(spec.shape, ifrt::DecodeShape(shape));
  PARKWAY_ASSIGN_OR_RETURN(spec.sharding, shardings_.Decode(sharding));
  PARKWAY_RETURN_IF_ERROR(CheckPlace(*spec.sharding));
  return spec;
}

absl::StatusOr<std::vector<runtime::ArraySpec>> Dispatcher::DecodeSpecs(
    const google::protobuf::RepeatedPtrField<xla::ifrt::ArraySpecProto>& specs) {
  std::vector<runtime::ArraySpec> decoded;
  decoded.reserve(specs.size());
  for (const xla::ifrt::ArraySpecProto& spec : specs) {
    PARKWAY_ASSIGN_OR_RETURN(decoded.emplace_back(), DecodeSpec(spec.dtype(), spec.shape(), spec.sharding()));
  }
  return decoded;
}

absl::Status Dispatcher::FailArrays(Handles results, absl::Status error) {
  // Nobody knows what the arrays should have been; what they are is an error.
  const runtime::ArraySpec unknown{
      .dtype = ifrt::DType::kPred, .shape = {}, .sharding = *ifrt::Sharding::SingleDevice(0), .layout = {}};
  for (runtime::Handle result : results) {
    if (CheckClientHandles({&result, 1}).ok()) {
      options_.session->MakeErrorArray(result, unknown, error).IgnoreError();  // a handle in use keeps its array
    }
  }
  return error;
}

}  // namespace parkway::proxy
