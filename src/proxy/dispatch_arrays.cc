#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/limits.h"
#include "base/status.h"
#include "ifrt/layout.h"
#include "ifrt/strides.h"
#include "ifrt/type_wire.h"
#include "proxy/dispatcher.h"
#include "proxy/wire_status.h"

namespace parkway::proxy {

namespace wire = xla::ifrt::proxy;

namespace {

// Strides of a buffer; empty when the client gave none. A scalar's are empty too, which means the same.
std::vector<int64_t> Strides(const xla::ifrt::proto::ByteStrides& strides) {
  return {strides.strides().begin(), strides.strides().end()};
}

// Bytes from a client become row-major arrays; programs may have other layouts.
absl::Status CheckLayout(const wire::MakeArrayFromHostBufferRequest& request, int rank) {
  if (!request.has_layout()) return absl::OkStatus();
  PARKWAY_ASSIGN_OR_RETURN(std::optional<ifrt::Layout> layout, ifrt::DecodeLayout(request.layout(), rank));
  if (!layout.has_value() || layout->IsRowMajor()) return absl::OkStatus();
  return absl::UnimplementedError(absl::StrCat("a host array can't be put with layout ", layout->ToString(),
                                               ": put it as it is, and change its layout in a program"));
}

// The bytes of a dense array as a client that gave strides wants to find them.
absl::StatusOr<Bytes> Spread(const runtime::ArraySpec& spec, const Bytes& dense, absl::Span<const int64_t> strides) {
  const int width = ifrt::ByteWidth(spec.dtype);
  if (width == 0) return absl::InvalidArgumentError("an array of strings can't be read with strides");
  PARKWAY_ASSIGN_OR_RETURN(int64_t size, ifrt::StridedSize(spec.shape, strides, width));
  if (ifrt::IsRowMajor(spec.shape, strides, width)) return dense;
  PARKWAY_ASSIGN_OR_RETURN(std::shared_ptr<Blob> blob, Blob::Create(size));
  const ifrt::Dims dense_strides = ifrt::RowMajorStrides(spec.shape, width);
  ifrt::CopyStrided(reinterpret_cast<const std::byte*>(dense.data), dense_strides,
                    reinterpret_cast<std::byte*>(blob->data()), strides, spec.shape.dims(), width);
  return Blob::Share(blob);
}

void AnswerRead(std::optional<Reply>& unanswered, const absl::Status& status) {
  Reply reply = std::move(*unanswered);
  unanswered.reset();
  if (!status.ok()) return reply.Fail(status);
  reply.message()->mutable_copy_to_host_buffer_response();
  reply.Ok();
}

}  // namespace

bool Dispatcher::HandleArrays(const Request& request) {
  // What makes arrays answers at once: the arrays may still be errors.
  auto answer = [](Reply reply, const absl::Status& status) { status.ok() ? reply.Ok() : reply.Fail(status); };
  switch (request.request_case()) {
    case Request::kMakeArrayFromHostBufferRequest: {
      const auto& make = request.make_array_from_host_buffer_request();
      Reply reply = MakeReply(request, Reply::Kind::kUnawaited);
      reply.message()->mutable_make_array_from_host_buffer_response()->set_array_handle(make.array_handle());
      answer(std::move(reply), MakeArrayFromHostBuffer(make));
      return true;
    }
    case Request::kMakeArraysFromHostBufferShardsRequest: {
      const auto& make = request.make_arrays_from_host_buffer_shards_request();
      Reply reply = MakeReply(request, Reply::Kind::kUnawaited);
      *reply.message()->mutable_make_arrays_from_host_buffer_shards_response()->mutable_array_handles() =
          make.array_handles();
      answer(std::move(reply), MakeArraysFromHostBufferShards(make));
      return true;
    }
    case Request::kMakeErrorArraysRequest: {
      const auto& make = request.make_error_arrays_request();
      Reply reply = MakeReply(request, Reply::Kind::kUnawaited);
      *reply.message()->mutable_make_error_arrays_response()->mutable_array_handles() = make.array_handles();
      answer(std::move(reply), MakeErrorArrays(make));
      return true;
    }
    case Request::kCopyToHostBufferRequest:
      CopyToHostBuffer(request.copy_to_host_buffer_request(), MakeReply(request, Reply::Kind::kAwaited));
      return true;
    case Request::kDeleteArrayRequest:
      DeleteArrays(request.delete_array_request(), MakeReply(request, Reply::Kind::kUncounted));
      return true;
    case Request::kDestructArrayRequest: {
      Reply reply = MakeReply(request, Reply::Kind::kUncounted);
      reply.message()->mutable_destruct_array_response();
      options_.session->Destruct(request.destruct_array_request().array_handle());
      reply.Ok();
      return true;
    }
    case Request::kCheckFutureRequest:
      CheckFuture(request.check_future_request(), MakeReply(request, Reply::Kind::kAwaited));
      return true;
    default:
      return false;
  }
}

absl::Status Dispatcher::MakeArrayFromHostBuffer(const wire::MakeArrayFromHostBufferRequest& request) {
  const runtime::Handle result = request.array_handle();
  PARKWAY_RETURN_IF_ERROR(CheckClientHandles({&result, 1}));
  // Taken whatever follows, so that bytes for a bad request don't stay.
  runtime::PendingBytesRef bytes = options_.buffers->Take(request.host_buffer_handle(), options_.executor->Now());
  absl::StatusOr<runtime::ArraySpec> spec = DecodeSpec(request.dtype(), request.shape(), request.sharding());
  if (!spec.ok()) return FailArrays({&result, 1}, spec.status());
  if (absl::Status layout = CheckLayout(request, spec->shape.rank()); !layout.ok()) {
    return FailArrays({&result, 1}, layout);
  }
  return options_.session->MakeArrayFromHostBuffer(result, *spec, std::move(bytes), Strides(request.byte_strides()));
}

absl::Status Dispatcher::MakeArraysFromHostBufferShards(const wire::MakeArraysFromHostBufferShardsRequest& request) {
  const Handles results = request.array_handles();
  PARKWAY_RETURN_IF_ERROR(CheckClientHandles(results));
  if (request.specs_size() != request.array_handles_size()) {
    return FailArrays(results, absl::InvalidArgumentError(absl::StrCat(request.array_handles_size(), " arrays of ",
                                                                       request.specs_size(), " specs")));
  }
  absl::Status first;
  for (int i = 0; i < request.specs_size(); ++i) {
    std::vector<runtime::PendingBytesRef> bytes;
    for (const auto& buffer : request.specs(i).host_buffers()) {
      bytes.push_back(options_.buffers->Take(buffer.host_buffer_handle(), options_.executor->Now()));
    }
    first.Update(MakeArrayFromShards(request.array_handles(i), request.specs(i), std::move(bytes)));
  }
  return first;
}

absl::Status Dispatcher::MakeArrayFromShards(
    runtime::Handle result, const wire::MakeArraysFromHostBufferShardsRequest::MakeArraysFromHostBufferShardsSpec& spec,
    std::vector<runtime::PendingBytesRef> bytes) {
  auto decode = [&]() -> absl::StatusOr<std::pair<runtime::ArraySpec, std::vector<runtime::HostShards>>> {
    PARKWAY_ASSIGN_OR_RETURN(runtime::ArraySpec array, DecodeSpec(spec.array_spec().dtype(), spec.array_spec().shape(),
                                                                  spec.array_spec().sharding()));
    if (spec.host_buffers_size() != spec.addressable_shard_indices_size()) {
      return absl::InvalidArgumentError(absl::StrCat("an array of ", spec.host_buffers_size(), " buffers with ",
                                                     spec.addressable_shard_indices_size(), " lists of shards"));
    }
    std::vector<runtime::HostShards> sources(spec.host_buffers_size());
    std::vector<bool> covered(array.sharding->num_shards());
    for (int b = 0; b < spec.host_buffers_size(); ++b) {
      PARKWAY_ASSIGN_OR_RETURN(sources[b].dtype, ifrt::DecodeDType(spec.host_buffers(b).dtype()));
      PARKWAY_ASSIGN_OR_RETURN(sources[b].shape, ifrt::DecodeShape(spec.host_buffers(b).shape()));
      sources[b].bytes = std::move(bytes[b]);
      sources[b].byte_strides = Strides(spec.host_buffers(b).byte_strides());
      for (int64_t shard : spec.addressable_shard_indices(b).indices()) {
        if (shard < 0 || shard >= array.sharding->num_shards() || covered[shard]) {
          return absl::InvalidArgumentError(
              absl::StrCat("shard ", shard, " of an array of ", covered.size(), " shards: each is to be made once"));
        }
        covered[shard] = true;
        sources[b].shards.push_back(static_cast<int>(shard));
      }
    }
    for (size_t shard = 0; shard < covered.size(); ++shard) {
      if (!covered[shard]) return absl::InvalidArgumentError(absl::StrCat("no buffer for shard ", shard));
    }
    return std::pair(std::move(array), std::move(sources));
  };
  auto decoded = decode();
  if (!decoded.ok()) return FailArrays({&result, 1}, Annotate(decoded.status(), "making an array of host buffers"));
  return options_.session->MakeArrayFromHostShards(result, decoded->first, std::move(decoded->second));
}

absl::Status Dispatcher::MakeErrorArrays(const wire::MakeErrorArraysRequest& request) {
  const Handles results = request.array_handles();
  PARKWAY_RETURN_IF_ERROR(CheckClientHandles(results));
  absl::StatusOr<std::vector<runtime::ArraySpec>> specs = DecodeSpecs(request.array_specs());
  if (specs.ok() && specs->size() != results.size()) {
    specs = absl::InvalidArgumentError(absl::StrCat(results.size(), " arrays of ", specs->size(), " specs"));
  }
  absl::Status error = DecodeStatus(request.error());
  if (error.ok()) specs = absl::InvalidArgumentError("arrays of an error that is no error");
  if (!specs.ok()) return FailArrays(results, specs.status());
  absl::Status first;
  for (size_t i = 0; i < results.size(); ++i) {
    first.Update(options_.session->MakeErrorArray(results[i], (*specs)[i], error));
  }
  return first;
}

void Dispatcher::CopyToHostBuffer(const wire::CopyToHostBufferRequest& request, Reply reply) {
  const runtime::Handle buffer = request.host_buffer_handle();
  if (absl::Status status = CheckClientHandles({&buffer, 1}); !status.ok()) return reply.Fail(status);
  const absl::StatusOr<runtime::ArraySpec> spec = options_.session->Describe(request.array_handle());
  if (!spec.ok()) return reply.Fail(spec.status());
  std::function<absl::StatusOr<Bytes>(const Bytes&)> arrange;
  if (request.has_byte_strides()) {
    arrange = [spec = *spec, strides = Strides(request.byte_strides())](const Bytes& dense) {
      return Spread(spec, dense, strides);
    };
  }
  if (absl::Status status = options_.buffers->Promise(buffer); !status.ok()) return reply.Fail(status);
  auto unanswered = std::make_shared<std::optional<Reply>>(std::move(reply));
  options_.session->Read(request.array_handle(), [unanswered, arrange = std::move(arrange), buffers = options_.buffers,
                                                  buffer](absl::StatusOr<Bytes> bytes) mutable {
    if (bytes.ok() && arrange) bytes = arrange(*bytes);
    absl::Status status = buffers->Offer(buffer, std::move(bytes));
    if (!unanswered->has_value()) return;  // whoever fetches hears it
    if (!status.ok()) buffers->Delete(buffer);
    AnswerRead(*unanswered, status);
  });
  // Not where strides may yet turn out to be wrong. A client takes longer from this reply to its fetch than a read of
  // what is ready takes: let the two overlap.
  absl::StatusOr<int64_t> size = spec->shape.ByteSize(spec->dtype);
  const bool small =
      !request.has_byte_strides() && size.ok() && *size <= static_cast<int64_t>(limits::kLookupOneMessageBytes);
  if (unanswered->has_value() && small && options_.buffers->promised() <= limits::kEarlyReadReplies) {
    AnswerRead(*unanswered, absl::OkStatus());
  }
}

void Dispatcher::DeleteArrays(const wire::DeleteArrayRequest& request, Reply reply) {
  absl::StatusOr<runtime::Handle> future = options_.session->Delete(request.array_handle());
  if (!future.ok()) return reply.Fail(future.status());
  deletions_.insert(*future);
  reply.message()->mutable_delete_array_response()->set_deletion_future_handle(*future);
  reply.Ok();
}

void Dispatcher::CheckFuture(const wire::CheckFutureRequest& request, Reply reply) {
  if (deletions_.erase(request.future_handle()) > 0) reply.set_uncounted();
  options_.session->CheckFuture(request.future_handle(),
                                [reply = std::move(reply)](const absl::Status& status) mutable {
                                  if (!status.ok()) return reply.Fail(status);
                                  reply.message()->mutable_check_future_response();
                                  reply.Ok();
                                });
}

}  // namespace parkway::proxy
