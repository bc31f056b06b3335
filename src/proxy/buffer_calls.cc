#include "proxy/buffer_calls.h"

#include <glog/logging.h>
#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/wire_format_lite.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/status.h"
#include "proxy/grpc_op.h"

namespace parkway::proxy {

namespace wire = xla::ifrt::proxy;
using google::protobuf::internal::WireFormatLite;
using google::protobuf::io::CodedInputStream;

namespace {

constexpr char kStoreMetadataKey[] = "ifrt-proxy-grpc-host-buffer-store-metadata-bin";
constexpr uint32_t kDataTag = (1 << 3) | WireFormatLite::WIRETYPE_LENGTH_DELIMITED;  // both messages: bytes data = 1
constexpr size_t kCopiedBytes = 4096;  // so few are sent as a copy, in one piece with what stands before them

// Appends the data of a HostBufferStoreRequest, without making a message of it.
absl::Status AppendData(grpc::ByteBuffer* message, StoreWriter* writer) {
  const absl::Status malformed = absl::InvalidArgumentError("a chunk of a host buffer can't be read");
  grpc::ProtoBufferReader reader(message);
  CodedInputStream input(&reader);
  while (uint32_t tag = input.ReadTag()) {
    if (tag != kDataTag) {
      if (!WireFormatLite::SkipField(&input, tag)) return malformed;
      continue;
    }
    uint32_t left = 0;
    if (!input.ReadVarint32(&left)) return malformed;
    while (left > 0) {
      const void* data = nullptr;
      int size = 0;
      if (!input.GetDirectBufferPointer(&data, &size) || size <= 0) return malformed;
      const uint32_t n = std::min<uint32_t>(left, size);
      PARKWAY_RETURN_IF_ERROR(writer->Append(static_cast<const uint8_t*>(data), n));
      input.Skip(static_cast<int>(n));
      left -= n;
    }
  }
  return input.ConsumedEntireMessage() ? absl::OkStatus() : malformed;
}

// A HostBufferLookupResponse with these bytes, which are sent from where they lie.
grpc::ByteBuffer DataMessage(const Bytes& bytes, size_t offset, size_t size) {
  if (size == 0) return grpc::ByteBuffer(nullptr, 0);
  std::string header;
  header.push_back(static_cast<char>(kDataTag));
  for (size_t n = size; n > 0; n >>= 7) header.push_back(static_cast<char>((n & 0x7f) | (n > 0x7f ? 0x80 : 0)));
  const uint8_t* data = bytes.data + offset;
  if (size <= kCopiedBytes) {
    header.append(reinterpret_cast<const char*>(data), size);
    grpc::Slice whole(header);
    return grpc::ByteBuffer(&whole, 1);
  }
  using Owner = std::shared_ptr<const void>;
  grpc::Slice slices[] = {grpc::Slice(header),
                          grpc::Slice(
                              const_cast<uint8_t*>(data), size, [](void* owner) { delete static_cast<Owner*>(owner); },
                              new Owner(bytes.owner))};
  return grpc::ByteBuffer(slices, 2);
}

absl::Status CheckStreams(const StoreWatch& stores) {
  if (stores.size() < limits::kMaxHostBufferStreams) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat(stores.size(), " host buffers are being sent to this proxy, as many as it takes at once"));
}

}  // namespace

class StoreCall : public std::enable_shared_from_this<StoreCall> {
 public:
  static void Accept(ServiceContext& context, StoreWatch& watch) {
    auto call = std::make_shared<StoreCall>(context, watch);
    context.service.RequestHostBufferStore(&call->grpc_, &call->stream_, context.queue, context.queue,
                                           call->accepted_op_.Arm(call));
  }
  StoreCall(ServiceContext& context, StoreWatch& watch)
      : counted_(context), context_(context), watch_(watch), stream_(&grpc_) {}
  ~StoreCall() { watch_.Remove(this); }

  void CancelIfStalled(absl::Time limit) {
    if (last_byte_ > limit) return;
    stalled_ = true;
    grpc_.TryCancel();
  }

 private:
  void OnAccepted(bool ok) {
    if (!ok) return;
    Accept(context_, watch_);
    last_byte_ = absl::Now();
    if (absl::Status status = Begin(); !status.ok()) return Fail(status);
    watch_.Add(this);
    stream_.Read(&chunk_, read_op_.Arm(shared_from_this()));
  }

  absl::Status Begin() {
    auto it = grpc_.client_metadata().find(kStoreMetadataKey);
    wire::GrpcHostBufferStoreMetadata metadata;
    if (it == grpc_.client_metadata().end() ||
        !metadata.ParseFromArray(it->second.data(), static_cast<int>(it->second.size()))) {
      return absl::InvalidArgumentError(absl::StrCat("the host buffer has no readable metadata ", kStoreMetadataKey));
    }
    PARKWAY_RETURN_IF_ERROR(CheckStreams(watch_));
    PARKWAY_ASSIGN_OR_RETURN(HostBuffersRef buffers, context_.buffers.Find(metadata.session_id()));
    PARKWAY_ASSIGN_OR_RETURN(bytes_, buffers->Start(metadata.handle(), metadata.buffer_size(), last_byte_));
    writer_.emplace(metadata.buffer_size());
    return absl::OkStatus();
  }

  void OnRead(bool ok) {
    if (!ok) return End();
    if (bytes_->is_set()) return Fail(absl::CancelledError("the session of this host buffer ended"));
    absl::Status status = AppendData(&chunk_, &*writer_);
    if (!status.ok()) return Fail(status);
    last_byte_ = absl::Now();
    stream_.Read(&chunk_, read_op_.Arm(shared_from_this()));
  }

  void End() {
    if (stalled_) {
      return Fail(absl::AbortedError(absl::StrCat("a host buffer brought no byte for ",
                                                  absl::FormatDuration(context_.stall), " and was dropped")));
    }
    absl::StatusOr<Bytes> bytes = writer_->Finish();
    if (!bytes.ok()) return Fail(bytes.status());
    bytes_->Set(*std::move(bytes));
    stream_.Finish(grpc::ByteBuffer(nullptr, 0), grpc::Status::OK, finished_op_.Arm(shared_from_this()));
  }

  void Fail(const absl::Status& why) {
    LOG(WARNING) << "host buffer of " << grpc_.peer() << ": " << why.message();
    if (bytes_ != nullptr) bytes_->Set(why);
    stream_.FinishWithError(ToGrpc(why), finished_op_.Arm(shared_from_this()));
  }
  void OnFinished(bool /*ok*/) {}

  Counted counted_;
  ServiceContext& context_;
  StoreWatch& watch_;
  grpc::ServerContext grpc_;
  grpc::ServerAsyncReader<grpc::ByteBuffer, grpc::ByteBuffer> stream_;
  grpc::ByteBuffer chunk_;
  runtime::PendingBytesRef bytes_;
  std::optional<StoreWriter> writer_;
  absl::Time last_byte_;
  bool stalled_ = false;
  Op<StoreCall, &StoreCall::OnAccepted> accepted_op_;
  Op<StoreCall, &StoreCall::OnRead> read_op_;
  Op<StoreCall, &StoreCall::OnFinished> finished_op_;
};

void StoreWatch::CancelStalled(absl::Time limit) {
  for (StoreCall* store : stores_) store->CancelIfStalled(limit);
}

namespace {

class LookupCall : public std::enable_shared_from_this<LookupCall> {
 public:
  static void Accept(ServiceContext& context) {
    auto call = std::make_shared<LookupCall>(context);
    context.service.RequestHostBufferLookup(&call->grpc_, &call->request_, &call->writer_, context.queue, context.queue,
                                            call->accepted_op_.Arm(call));
  }
  explicit LookupCall(ServiceContext& context) : counted_(context), context_(context), writer_(&grpc_) {}

 private:
  void OnAccepted(bool ok) {
    if (!ok) return;
    Accept(context_);
    if (absl::Status status = Begin(); !status.ok()) Refuse(status);
  }

  absl::Status Begin() {
    grpc::ProtoBufferReader reader(&request_);
    wire::GrpcHostBufferLookupRequest request;
    if (!request.ParseFromZeroCopyStream(&reader)) {
      return absl::InvalidArgumentError("a request for a host buffer can't be read");
    }
    PARKWAY_ASSIGN_OR_RETURN(HostBuffersRef buffers, context_.buffers.Find(request.session_id()));
    buffers->Fetch(request.handle(), [self = shared_from_this()](const absl::StatusOr<Bytes>& bytes) {
      if (!bytes.ok()) return self->Refuse(bytes.status());
      self->bytes_ = *bytes;
      self->WriteNext();
    });
    return absl::OkStatus();
  }

  void Refuse(const absl::Status& why) { writer_.Finish(ToGrpc(why), finished_op_.Arm(shared_from_this())); }

  void WriteNext() {
    const size_t left = bytes_.size - written_;
    const size_t size = left <= limits::kLookupOneMessageBytes ? left : std::min(left, limits::kLookupChunkBytes);
    grpc::ByteBuffer message = DataMessage(bytes_, written_, size);
    written_ += size;
    if (written_ == bytes_.size) {
      writer_.WriteAndFinish(message, grpc::WriteOptions(), grpc::Status::OK, finished_op_.Arm(shared_from_this()));
    } else {
      writer_.Write(message, written_op_.Arm(shared_from_this()));
    }
  }
  void OnWritten(bool ok) {
    if (ok) return WriteNext();
    writer_.Finish(grpc::Status::CANCELLED, finished_op_.Arm(shared_from_this()));
  }
  void OnFinished(bool /*ok*/) {}

  Counted counted_;
  ServiceContext& context_;
  grpc::ServerContext grpc_;
  grpc::ByteBuffer request_;
  grpc::ServerAsyncWriter<grpc::ByteBuffer> writer_;
  Bytes bytes_;
  size_t written_ = 0;
  Op<LookupCall, &LookupCall::OnAccepted> accepted_op_;
  Op<LookupCall, &LookupCall::OnWritten> written_op_;
  Op<LookupCall, &LookupCall::OnFinished> finished_op_;
};

// A call of one request and one response. `Method` has Ask, which waits for a call, and Answer.
template <typename Method>
class UnaryCall : public std::enable_shared_from_this<UnaryCall<Method>> {
 public:
  static void Accept(ServiceContext& context) {
    auto call = std::make_shared<UnaryCall>(context);
    Method::Ask(context, &call->grpc_, &call->request_, &call->writer_, call->accepted_op_.Arm(call));
  }
  explicit UnaryCall(ServiceContext& context) : counted_(context), context_(context), writer_(&grpc_) {}

 private:
  void OnAccepted(bool ok) {
    if (!ok) return;
    Accept(context_);
    typename Method::Response response;
    const absl::Status status = Method::Answer(context_, request_, &response);
    writer_.Finish(response, ToGrpc(status), finished_op_.Arm(this->shared_from_this()));
  }
  void OnFinished(bool /*ok*/) {}

  Counted counted_;
  ServiceContext& context_;
  grpc::ServerContext grpc_;
  typename Method::Request request_;
  grpc::ServerAsyncResponseWriter<typename Method::Response> writer_;
  Op<UnaryCall, &UnaryCall::OnAccepted> accepted_op_;
  Op<UnaryCall, &UnaryCall::OnFinished> finished_op_;
};

struct GetVersion {
  using Request = wire::GrpcGetVersionRequest;
  using Response = wire::GrpcGetVersionResponse;
  static void Ask(ServiceContext& context, grpc::ServerContext* grpc, Request* request,
                  grpc::ServerAsyncResponseWriter<Response>* writer, void* tag) {
    context.service.RequestGetVersion(grpc, request, writer, context.queue, context.queue, tag);
  }
  static absl::Status Answer(ServiceContext& context, const Request& request, Response* response) {
    const auto& min = request.min_version();
    const auto& max = request.max_version();
    absl::StatusOr<Version> version = Negotiate(context.versions, {min.protocol_version(), max.protocol_version()},
                                                {min.ifrt_serdes_version_number(), max.ifrt_serdes_version_number()});
    if (!version.ok()) {
      LOG(WARNING) << "refused a client: " << version.status().message();
      return version.status();
    }
    response->mutable_version()->set_protocol_version(version->protocol);
    response->mutable_version()->set_ifrt_serdes_version_number(version->serdes);
    return absl::OkStatus();
  }
};

struct DeleteBuffer {
  using Request = wire::GrpcHostBufferDeleteRequest;
  using Response = wire::GrpcHostBufferDeleteResponse;
  static void Ask(ServiceContext& context, grpc::ServerContext* grpc, Request* request,
                  grpc::ServerAsyncResponseWriter<Response>* writer, void* tag) {
    context.service.RequestHostBufferDelete(grpc, request, writer, context.queue, context.queue, tag);
  }
  static absl::Status Answer(ServiceContext& context, const Request& request, Response*) {
    PARKWAY_ASSIGN_OR_RETURN(HostBuffersRef buffers, context.buffers.Find(request.session_id()));
    buffers->Delete(request.handle());
    return absl::OkStatus();
  }
};

struct ReadFromDisk {
  using Request = wire::GrpcHostBufferReadFromDiskRequest;
  using Response = wire::GrpcHostBufferReadFromDiskResponse;
  static void Ask(ServiceContext& context, grpc::ServerContext* grpc, Request* request,
                  grpc::ServerAsyncResponseWriter<Response>* writer, void* tag) {
    context.service.RequestHostBufferReadFromDisk(grpc, request, writer, context.queue, context.queue, tag);
  }
  static absl::Status Answer(ServiceContext& context, const Request& request, Response*) {
    const auto& metadata = request.metadata();
    if (context.directory == nullptr) {
      return absl::FailedPreconditionError("this proxy was given no directory for large transfers");
    }
    PARKWAY_ASSIGN_OR_RETURN(HostBuffersRef buffers, context.buffers.Find(metadata.session_id()));
    PARKWAY_ASSIGN_OR_RETURN(runtime::PendingBytesRef pending,
                             buffers->Start(metadata.handle(), metadata.buffer_size(), absl::Now()));
    absl::StatusOr<Bytes> bytes = context.directory->Take(metadata.handle(), metadata.buffer_size());
    absl::Status status = bytes.status();
    pending->Set(std::move(bytes));
    return status;
  }
};

}  // namespace

void AcceptBufferCalls(ServiceContext& context, StoreWatch& stores) {
  StoreCall::Accept(context, stores);
  LookupCall::Accept(context);
  UnaryCall<GetVersion>::Accept(context);
  UnaryCall<DeleteBuffer>::Accept(context);
  UnaryCall<ReadFromDisk>::Accept(context);
}

}  // namespace parkway::proxy
