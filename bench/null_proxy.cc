// The floor of the benchmarks: an IFRT proxy that answers everything at once and computes nothing. What a stock client
// takes with it is what the client, gRPC and the machine cost by themselves. It keeps the size of each array and
// nothing else: bytes that come are dropped, bytes that go are zeros, results have the types that the program declares
// (null_proxy_types.py reads them). One client at a time, on loopback; one completion queue and one thread.
#include <grpcpp/alarm.h>
#include <grpcpp/grpcpp.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "proto/ifrt/grpc_ifrt_service.grpc.pb.h"
#include "proto/ifrt/program.pb.h"
#include "proto/ifrt/sharding.pb.h"

namespace parkway::bench {
namespace {

namespace wire = xla::ifrt::proxy;
using Service = wire::GrpcIfrtService::WithAsyncMethod_GetVersion<
    wire::GrpcIfrtService::WithAsyncMethod_IfrtSession<wire::GrpcIfrtService::WithRawMethod_HostBufferStore<
        wire::GrpcIfrtService::WithRawMethod_HostBufferLookup<wire::GrpcIfrtService::WithAsyncMethod_HostBufferDelete<
            wire::GrpcIfrtService::WithAsyncMethod_HostBufferReadFromDisk<wire::GrpcIfrtService::Service>>>>>>;

constexpr size_t kOneMessage = 256 << 10;  // reads up to this size go out with their status
constexpr size_t kChunk = 4 << 20;
constexpr int kHintedReplies = 64;
constexpr uint64_t kServerHandles = uint64_t{1} << 48;

struct Options {
  std::string listen = "127.0.0.1:26000";
  std::string unix_path;
  std::string python = "python3";
  std::string types_script;
  std::string directory;
  int devices = 1;
};

struct Output {
  int kind = 0;
  std::vector<int64_t> dims;
  size_t shard_bytes = 0;
  std::string sharding;  // serialized xla.OpSharding; empty: replicated
};
struct Program {
  std::vector<Output> outputs;
  std::vector<std::string> parameter_shardings;
  std::vector<int> donated;
  std::vector<int> devices;
};

// The other end of null_proxy_types.py.
class TypeReader {
 public:
  TypeReader(const std::string& python, const std::string& script) {
    int in[2], out[2];
    if (pipe(in) != 0 || pipe(out) != 0) return;
    if (fork() == 0) {
      dup2(in[0], 0);
      dup2(out[1], 1);
      for (int fd : {in[0], in[1], out[0], out[1]}) close(fd);
      setenv("JAX_PLATFORMS", "cpu", 1);
      execlp(python.c_str(), python.c_str(), script.c_str(), nullptr);
      _exit(127);
    }
    close(in[0]);
    close(out[1]);
    to_ = fdopen(in[1], "w");
    from_ = fdopen(out[0], "r");
  }

  bool Read(const std::string& artifact, Program* program) {
    fprintf(to_, "%zu\n", artifact.size());
    fwrite(artifact.data(), 1, artifact.size(), to_);
    fflush(to_);
    char* line = nullptr;
    size_t capacity = 0;
    ssize_t n = getline(&line, &capacity, from_);
    std::string text = n > 0 ? std::string(line, n - 1) : "";
    free(line);
    if (n <= 0) return false;
    for (absl::string_view field : absl::StrSplit(text, ';', absl::SkipEmpty())) Add(field, program);
    return true;
  }

 private:
  static void Add(absl::string_view field, Program* program) {
    std::vector<std::string> words = absl::StrSplit(field, ' ');
    auto sharding = [](const std::string& hex) { return hex == "-" ? "" : absl::HexStringToBytes(hex); };
    if (words[0] == "out") {
      Output& out = program->outputs.emplace_back();
      out.kind = std::stoi(words[1]);
      std::vector<std::string> dims = absl::StrSplit(words[2], ',');
      for (const std::string& dim : dims) {
        if (dim != "-") out.dims.push_back(std::stoll(dim));
      }
      out.shard_bytes = std::stoull(words[3]);
      out.sharding = sharding(words[4]);
    } else if (words[0] == "in") {
      program->parameter_shardings.push_back(sharding(words[1]));
    } else {
      program->donated.push_back(std::stoi(words[1]));
    }
  }

  FILE* to_ = nullptr;
  FILE* from_ = nullptr;
};

size_t ElementBytes(int kind) {
  switch (kind) {
    case xla::ifrt::DTypeProto::KIND_S16:
    case xla::ifrt::DTypeProto::KIND_U16:
    case xla::ifrt::DTypeProto::KIND_F16:
    case xla::ifrt::DTypeProto::KIND_BF16:
      return 2;
    case xla::ifrt::DTypeProto::KIND_S32:
    case xla::ifrt::DTypeProto::KIND_U32:
    case xla::ifrt::DTypeProto::KIND_F32:
      return 4;
    case xla::ifrt::DTypeProto::KIND_S64:
    case xla::ifrt::DTypeProto::KIND_U64:
    case xla::ifrt::DTypeProto::KIND_F64:
    case xla::ifrt::DTypeProto::KIND_C64:
      return 8;
    case xla::ifrt::DTypeProto::KIND_C128:
      return 16;
    default:
      return 1;
  }
}

size_t SizeOf(const xla::ifrt::DTypeProto& dtype, const xla::ifrt::ShapeProto& shape) {
  size_t size = ElementBytes(dtype.kind());
  for (int64_t dim : shape.dims()) size *= dim;
  return size;
}

// What the client believes to exist.
class State {
 public:
  explicit State(const Options& options) : options_(options), types_(options.python, options.types_script) {}

  const Options& options() const { return options_; }
  size_t BufferSize(uint64_t handle) const {
    auto it = sizes_.find(handle);
    return it == sizes_.end() ? 0 : it->second;
  }
  void Forget(uint64_t handle) { sizes_.erase(handle); }

  // A Store is complete.
  void OnStored(uint64_t buffer) {
    stored_.insert(buffer);
    std::vector<Waiter> waiters = std::move(waiters_);
    waiters_.clear();
    for (Waiter& waiter : waiters) {
      if (IsStored(waiter.request)) {
        waiter.then();
      } else {
        waiters_.push_back(std::move(waiter));
      }
    }
  }
  // Whether the bytes are there that this request waits for.
  bool IsStored(const wire::IfrtRequest& request) const {
    for (uint64_t handle : request.check_value_ready_request().value_handles()) {
      auto it = buffers_.find(handle);
      if (it == buffers_.end()) continue;
      for (uint64_t buffer : it->second) {
        if (!stored_.contains(buffer)) return false;
      }
    }
    return true;
  }
  void WhenStored(const wire::IfrtRequest& request, std::function<void()> then) {
    waiters_.push_back({request, std::move(then)});
  }
  void DropWaiters() { waiters_.clear(); }

  // Fills the reply; true when the client waits for it.
  bool Answer(const wire::IfrtRequest& request, wire::IfrtResponse* reply) {
    using R = wire::IfrtRequest;
    switch (request.request_case()) {
      case R::kInitRequest:
        Init(reply->mutable_init_response());
        return true;
      case R::kCheckFutureRequest:
        reply->mutable_check_future_response();
        return true;
      case R::kCheckValueReadyRequest:
        reply->mutable_check_value_ready_response();
        return true;
      case R::kMakeArrayFromHostBufferRequest: {
        const auto& make = request.make_array_from_host_buffer_request();
        sizes_[make.array_handle()] = SizeOf(make.dtype(), make.shape());
        buffers_[make.array_handle()] = {make.host_buffer_handle()};
        reply->mutable_make_array_from_host_buffer_response()->set_array_handle(make.array_handle());
        return false;
      }
      case R::kMakeArraysFromHostBufferShardsRequest: {
        const auto& make = request.make_arrays_from_host_buffer_shards_request();
        for (int i = 0; i < make.specs_size(); ++i) {
          const auto& first = make.specs(i).host_buffers(0);
          sizes_[make.array_handles(i)] = SizeOf(first.dtype(), first.shape());
          auto& buffers = buffers_[make.array_handles(i)];
          for (const auto& buffer : make.specs(i).host_buffers()) buffers.push_back(buffer.host_buffer_handle());
        }
        Echo(make.array_handles(), reply->mutable_make_arrays_from_host_buffer_shards_response());
        return false;
      }
      default:
        return AnswerAboutArrays(request, reply);
    }
  }

 private:
  struct Waiter {
    wire::IfrtRequest request;
    std::function<void()> then;
  };

  void Destruct(uint64_t array) {
    sizes_.erase(array);
    auto it = buffers_.find(array);
    if (it == buffers_.end()) return;
    for (uint64_t buffer : it->second) stored_.erase(buffer);
    buffers_.erase(it);
  }

  template <typename Handles, typename Response>
  void Echo(const Handles& handles, Response* response) {
    response->mutable_array_handles()->CopyFrom(handles);
  }

  bool AnswerAboutArrays(const wire::IfrtRequest& request, wire::IfrtResponse* reply) {
    using R = wire::IfrtRequest;
    switch (request.request_case()) {
      case R::kAssembleArrayFromSingleDeviceArraysRequest: {
        const auto& make = request.assemble_array_from_single_device_arrays_request();
        sizes_[make.result_handle()] =
            make.single_device_array_handles_size() > 0 ? BufferSize(make.single_device_array_handles(0)) : 0;
        reply->mutable_assemble_array_from_single_device_arrays_response()->set_array_handle(make.result_handle());
        return false;
      }
      case R::kDisassembleIntoSingleDeviceArraysRequest: {
        const auto& split = request.disassemble_into_single_device_arrays_request();
        for (uint64_t handle : split.result_handles()) sizes_[handle] = BufferSize(split.array_handle());
        Echo(split.result_handles(), reply->mutable_disassemble_into_single_device_arrays_response());
        return false;
      }
      case R::kFullyReplicatedShardRequest: {
        const auto& take = request.fully_replicated_shard_request();
        sizes_[take.result_handle()] = BufferSize(take.array_handle());
        reply->mutable_fully_replicated_shard_response()->set_array_handle(take.result_handle());
        return false;
      }
      case R::kCopyArraysRequest: {
        const auto& copy = request.copy_arrays_request();
        for (int i = 0; i < copy.array_handles_size(); ++i) {
          sizes_[copy.result_handles(i)] = BufferSize(copy.array_handles(i));
        }
        Echo(copy.result_handles(), reply->mutable_copy_arrays_response());
        return false;
      }
      case R::kCopyToHostBufferRequest: {
        const auto& copy = request.copy_to_host_buffer_request();
        sizes_[copy.host_buffer_handle()] = BufferSize(copy.array_handle());
        reply->mutable_copy_to_host_buffer_response();
        return true;
      }
      case R::kDeleteArrayRequest:
        reply->mutable_delete_array_response()->set_deletion_future_handle(next_handle_++);
        return false;
      case R::kIsArrayDeletedRequest:
        reply->mutable_is_array_deleted_response();
        return true;
      case R::kDestructArrayRequest:
        for (uint64_t handle : request.destruct_array_request().array_handle()) Destruct(handle);
        reply->mutable_destruct_array_response();
        return false;
      default:
        return AnswerAboutPrograms(request, reply);
    }
  }

  bool AnswerAboutPrograms(const wire::IfrtRequest& request, wire::IfrtResponse* reply) {
    using R = wire::IfrtRequest;
    switch (request.request_case()) {
      case R::kCompileRequest:
        Compile(request.compile_request(), reply);
        return true;
      case R::kLoadedExecutableMetadataRequest:
        Metadata(request.loaded_executable_metadata_request().loaded_executable_handle(),
                 reply->mutable_loaded_executable_metadata_response());
        return true;
      case R::kLoadedExecutableExecuteRequest:
        Execute(request.loaded_executable_execute_request(), reply->mutable_loaded_executable_execute_response());
        return request.loaded_executable_execute_request().result_array_handle().empty();
      case R::kLoadedExecutableDestructRequest:
        programs_.erase(request.loaded_executable_destruct_request().loaded_executable_handle());
        reply->mutable_loaded_executable_destruct_response();
        return false;
      case R::kGetDefaultLayoutRequest: {
        std::vector<int> major_last;
        for (int i = request.get_default_layout_request().dims_size() - 1; i >= 0; --i) major_last.push_back(i);
        reply->mutable_get_default_layout_response()->set_serialized_pjrt_layout(
            absl::StrCat("{", absl::StrJoin(major_last, ","), "}"));
        return true;
      }
      default: {
        auto* status = reply->mutable_response_metadata()->mutable_status();
        status->set_code(tensorflow::error::UNIMPLEMENTED);
        status->set_message("the null proxy does not answer this request");
        return true;
      }
    }
  }

  void Init(wire::InitResponse* init) {
    init->set_session_id(1);
    init->set_platform_name("cpu");
    init->set_platform_version("null");
    init->set_runtime_type("pathways");
    for (int i = 0; i < options_.devices; ++i) {
      auto* device = init->add_all_devices();
      device->set_id(i);
      device->set_local_device_id(i);
      device->set_local_hardware_id(i);
      device->set_platform_name("cpu");
      device->set_device_kind("cpu");
      device->set_default_memory_id(i);
      device->add_memory_ids(i);
      device->set_debug_string(absl::StrCat("cpu:", i));
      device->set_to_string(absl::StrCat("CpuDevice(id=", i, ")"));
      init->add_primary_device_ids(i);
      init->add_addressable_device_ids(i);
      auto* memory = init->add_memories();
      memory->set_id(i);
      memory->set_memory_space_kind("device");
      memory->add_device_ids(i);
      memory->set_debug_string(absl::StrCat("device:", i));
      memory->set_to_string(absl::StrCat("device:", i));
    }
  }

  void Compile(const wire::CompileRequest& request, wire::IfrtResponse* reply) {
    Program program;
    xla::ifrt::XlaCompileOptionsProto options;
    if (!types_.Read(request.program().data(), &program) ||
        !options.ParseFromString(request.compile_options().data())) {
      auto* status = reply->mutable_response_metadata()->mutable_status();
      status->set_code(tensorflow::error::INVALID_ARGUMENT);
      status->set_message("the null proxy can't read the program's types");
      return;
    }
    const auto& assignment = options.compile_options().executable_build_options().device_assignment();
    for (int replica = 0; replica < assignment.replica_count(); ++replica) {
      for (const auto& partition : assignment.computation_devices()) {
        program.devices.push_back(partition.replica_device_ids(replica));
      }
    }
    auto* response = reply->mutable_compile_response();
    response->set_loaded_executable_handle(next_handle_++);
    response->set_ready_future_handle(next_handle_++);
    response->set_name("null");
    response->set_num_devices(program.devices.size());
    for (int id : program.devices) {
      response->add_device_ids(id);
      response->add_addressable_device_ids(id);
    }
    response->set_fingerprint_value("null");
    programs_[response->loaded_executable_handle()] = std::move(program);
  }

  void Metadata(uint64_t handle, wire::LoadedExecutableMetadataResponse* response) {
    const Program& program = programs_[handle];
    auto* kinds = response->mutable_output_memory_kinds()->add_memory_kind_lists();
    for (size_t i = 0; i < program.outputs.size(); ++i) kinds->add_memory_kinds("device");
    for (int index : program.donated) response->mutable_donated_input_indices()->add_donated_input_indices(index);
    response->mutable_donated_input_indices();
    if (program.devices.size() < 2) return;
    auto* parameters = response->mutable_parameter_shardings();
    for (const std::string& sharding : program.parameter_shardings)
      parameters->add_shardings()->ParseFromString(sharding);
    auto* outputs = response->mutable_output_shardings();
    for (const Output& output : program.outputs) outputs->add_shardings()->ParseFromString(output.sharding);
  }

  void Execute(const wire::LoadedExecutableExecuteRequest& request, wire::LoadedExecutableExecuteResponse* response) {
    const Program& program = programs_[request.loaded_executable_handle()];
    if (request.result_array_handle_size() == static_cast<int>(program.outputs.size()) && !program.outputs.empty()) {
      for (size_t i = 0; i < program.outputs.size(); ++i) {
        sizes_[request.result_array_handle(i)] = program.outputs[i].shard_bytes;
      }
      return;
    }
    for (const Output& output : program.outputs) {
      auto* out = response->add_outputs();
      out->mutable_dtype()->set_kind(static_cast<xla::ifrt::DTypeProto::Kind>(output.kind));
      for (int64_t dim : output.dims) out->mutable_shape()->add_dims(dim);
      xla::ifrt::HloShardingProto sharding;
      for (int id : program.devices) sharding.mutable_devices()->add_device_ids(id);
      sharding.mutable_xla_op_sharding()->ParseFromString(output.sharding);
      auto* serialized = out->mutable_sharding()->mutable_serialized_sharding();
      serialized->set_type_name("xla::ifrt::HloSharding");
      sharding.SerializeToString(serialized->mutable_data());
      out->set_array_handle(next_handle_);
      sizes_[next_handle_++] = output.shard_bytes;
    }
  }

  const Options options_;
  TypeReader types_;
  absl::flat_hash_map<uint64_t, size_t> sizes_;                   // bytes of a shard, by array or host buffer
  absl::flat_hash_map<uint64_t, std::vector<uint64_t>> buffers_;  // that an array is made of
  absl::flat_hash_set<uint64_t> stored_;                          // buffers that have come
  std::vector<Waiter> waiters_;
  absl::flat_hash_map<uint64_t, Program> programs_;
  uint64_t next_handle_ = kServerHandles;
};

class Tag {
 public:
  virtual ~Tag() = default;
  virtual void Run(bool ok) = 0;
};

// An event that calls one method of its owner.
template <typename T, void (T::*method)(bool)>
class Event final : public Tag {
 public:
  explicit Event(T* owner) : owner_(owner) {}
  void Run(bool ok) override { (owner_->*method)(ok); }

 private:
  T* owner_;
};

struct Server {
  State state;
  Service service;
  std::unique_ptr<grpc::ServerCompletionQueue> queue;
  explicit Server(const Options& options) : state(options) {}
};

// Reads requests and writes their replies in order. Replies that nobody waits for are left in gRPC's write buffer; the
// newest of them stays here, so that a timer can send it and all before it.
class Session {
 public:
  explicit Session(Server& server) : server_(server), stream_(&context_) {
    server_.service.RequestIfrtSession(&context_, &stream_, server_.queue.get(), server_.queue.get(), &accepted_);
  }

 private:
  void OnAccepted(bool ok) {
    if (!ok) return;
    new Session(server_);
    stream_.Read(&request_, &read_);
  }
  void OnRead(bool ok) {
    if (!ok) {
      ended_ = true;
      server_.state.DropWaiters();
      return MaybeFinish();
    }
    if (server_.state.IsStored(request_)) {
      Answer(request_);
    } else {
      server_.state.WhenStored(request_, [this, request = request_] { Answer(request); });
    }
    stream_.Read(&request_, &read_);
  }
  void Answer(const wire::IfrtRequest& request) {
    wire::IfrtResponse& reply = replies_.emplace_back();
    auto* metadata = reply.mutable_response_metadata();
    metadata->set_op_id(request.request_metadata().op_id());
    bool awaited = server_.state.Answer(request, &reply);
    if (request.request_metadata().user_context_id() != 0 && !metadata->has_status()) {
      metadata->add_destroyed_user_context_ids(request.request_metadata().user_context_id());
    }
    if (awaited) flush_through_ = next_ + replies_.size();
    Pump();
  }
  void OnWritten(bool ok) {
    writing_ = false;
    replies_.pop_front();
    ++next_;
    if (!ok) ended_ = true;
    if (ended_) return MaybeFinish();
    Pump();
  }
  void OnTimer(bool ok) {
    timer_set_ = false;
    flush_through_ = next_ + replies_.size();
    ended_ ? MaybeFinish() : Pump();
  }
  void OnFinished(bool ok) { delete this; }

  void Pump() {
    if (writing_ || replies_.empty()) return;
    bool last = replies_.size() == 1;
    bool wanted = next_ < flush_through_;
    if (last && !wanted) {
      if (!timer_set_) {
        timer_set_ = true;
        timer_.Set(server_.queue.get(),
                   gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC), gpr_time_from_millis(1, GPR_TIMESPAN)), &fired_);
      }
      return;
    }
    grpc::WriteOptions options;
    hinted_ = next_ + 1 == flush_through_ || hinted_ == kHintedReplies ? 0 : hinted_ + 1;
    if (hinted_ > 0) options.set_buffer_hint();
    writing_ = true;
    stream_.Write(replies_.front(), options, &written_);
  }
  void MaybeFinish() {
    if (writing_ || timer_set_ || finishing_) return;
    finishing_ = true;
    stream_.Finish(grpc::Status::OK, &finished_);
  }

  Server& server_;
  grpc::ServerContext context_;
  grpc::ServerAsyncReaderWriter<wire::IfrtResponse, wire::IfrtRequest> stream_;
  grpc::Alarm timer_;
  wire::IfrtRequest request_;
  std::deque<wire::IfrtResponse> replies_;
  uint64_t next_ = 0;           // number of replies_.front()
  uint64_t flush_through_ = 0;  // replies before this number go out now
  int hinted_ = 0;
  bool writing_ = false, timer_set_ = false, ended_ = false, finishing_ = false;
  Event<Session, &Session::OnAccepted> accepted_{this};
  Event<Session, &Session::OnRead> read_{this};
  Event<Session, &Session::OnWritten> written_{this};
  Event<Session, &Session::OnTimer> fired_{this};
  Event<Session, &Session::OnFinished> finished_{this};
};

class Store {
 public:
  explicit Store(Server& server) : server_(server), stream_(&context_) {
    server_.service.RequestHostBufferStore(&context_, &stream_, server_.queue.get(), server_.queue.get(), &accepted_);
  }

 private:
  void OnAccepted(bool ok) {
    if (!ok) return;
    new Store(server_);
    auto it = context_.client_metadata().find("ifrt-proxy-grpc-host-buffer-store-metadata-bin");
    wire::GrpcHostBufferStoreMetadata metadata;
    if (it != context_.client_metadata().end()) metadata.ParseFromArray(it->second.data(), it->second.size());
    handle_ = metadata.handle();
    stream_.Read(&chunk_, &read_);
  }
  void OnRead(bool ok) {
    if (ok) return stream_.Read(&chunk_, &read_);
    server_.state.OnStored(handle_);
    stream_.Finish(grpc::ByteBuffer(nullptr, 0), grpc::Status::OK, &finished_);
  }
  void OnFinished(bool ok) { delete this; }

  Server& server_;
  grpc::ServerContext context_;
  grpc::ServerAsyncReader<grpc::ByteBuffer, grpc::ByteBuffer> stream_;
  grpc::ByteBuffer chunk_;
  uint64_t handle_ = 0;
  Event<Store, &Store::OnAccepted> accepted_{this};
  Event<Store, &Store::OnRead> read_{this};
  Event<Store, &Store::OnFinished> finished_{this};
};

class Lookup {
 public:
  explicit Lookup(Server& server) : server_(server), writer_(&context_) {
    server_.service.RequestHostBufferLookup(&context_, &request_, &writer_, server_.queue.get(), server_.queue.get(),
                                            &accepted_);
  }

 private:
  void OnAccepted(bool ok) {
    if (!ok) return;
    new Lookup(server_);
    grpc::ProtoBufferReader reader(&request_);
    wire::GrpcHostBufferLookupRequest request;
    request.ParseFromZeroCopyStream(&reader);
    left_ = server_.state.BufferSize(request.handle());
    Write();
  }
  void OnWritten(bool ok) {
    if (!ok) return writer_.Finish(grpc::Status::CANCELLED, &finished_);
    Write();
  }
  void OnFinished(bool ok) { delete this; }

  void Write() {
    size_t size = left_ <= kOneMessage ? left_ : std::min(left_, kChunk);
    left_ -= size;
    grpc::ByteBuffer message = Message(size);
    if (left_ == 0) {
      writer_.WriteAndFinish(message, grpc::WriteOptions(), grpc::Status::OK, &finished_);
    } else {
      writer_.Write(message, &written_);
    }
  }
  // A HostBufferLookupResponse of so many zeros, without a copy.
  static grpc::ByteBuffer Message(size_t size) {
    static const std::string zeros(kChunk, '\0');
    if (size == 0) return grpc::ByteBuffer(nullptr, 0);
    std::string header(1, '\x0a');
    for (size_t n = size; n > 0; n >>= 7) header.push_back(static_cast<char>((n & 0x7f) | (n > 0x7f ? 0x80 : 0)));
    grpc::Slice slices[] = {grpc::Slice(header), grpc::Slice(zeros.data(), size, grpc::Slice::STATIC_SLICE)};
    return grpc::ByteBuffer(slices, 2);
  }

  Server& server_;
  grpc::ServerContext context_;
  grpc::ByteBuffer request_;
  grpc::ServerAsyncWriter<grpc::ByteBuffer> writer_;
  size_t left_ = 0;
  Event<Lookup, &Lookup::OnAccepted> accepted_{this};
  Event<Lookup, &Lookup::OnWritten> written_{this};
  Event<Lookup, &Lookup::OnFinished> finished_{this};
};

// A call with one request and one response; `Self` says how it is asked for and answered.
template <typename Self, typename Request, typename Response>
class Unary {
 public:
  explicit Unary(Server& server) : server_(server), writer_(&context_) {}

 protected:
  void OnAccepted(bool ok) {
    if (!ok) return;
    Self::Accept(server_);
    Response response;
    static_cast<Self*>(this)->Answer(request_, &response);
    writer_.Finish(response, grpc::Status::OK, &finished_);
  }
  void OnFinished(bool ok) { delete static_cast<Self*>(this); }

  Server& server_;
  grpc::ServerContext context_;
  Request request_;
  grpc::ServerAsyncResponseWriter<Response> writer_;
  Event<Unary, &Unary::OnAccepted> accepted_{this};
  Event<Unary, &Unary::OnFinished> finished_{this};
};

class GetVersion : public Unary<GetVersion, wire::GrpcGetVersionRequest, wire::GrpcGetVersionResponse> {
 public:
  using Unary::Unary;
  static void Accept(Server& server) {
    auto* call = new GetVersion(server);
    server.service.RequestGetVersion(&call->context_, &call->request_, &call->writer_, server.queue.get(),
                                     server.queue.get(), &call->accepted_);
  }
  void Answer(const wire::GrpcGetVersionRequest& request, wire::GrpcGetVersionResponse* response) {
    *response->mutable_version() = request.max_version();
  }
};

class Delete : public Unary<Delete, wire::GrpcHostBufferDeleteRequest, wire::GrpcHostBufferDeleteResponse> {
 public:
  using Unary::Unary;
  static void Accept(Server& server) {
    auto* call = new Delete(server);
    server.service.RequestHostBufferDelete(&call->context_, &call->request_, &call->writer_, server.queue.get(),
                                           server.queue.get(), &call->accepted_);
  }
  void Answer(const wire::GrpcHostBufferDeleteRequest& request, wire::GrpcHostBufferDeleteResponse*) {
    server_.state.Forget(request.handle());
  }
};

class ReadFromDisk
    : public Unary<ReadFromDisk, wire::GrpcHostBufferReadFromDiskRequest, wire::GrpcHostBufferReadFromDiskResponse> {
 public:
  using Unary::Unary;
  static void Accept(Server& server) {
    auto* call = new ReadFromDisk(server);
    server.service.RequestHostBufferReadFromDisk(&call->context_, &call->request_, &call->writer_, server.queue.get(),
                                                 server.queue.get(), &call->accepted_);
  }
  void Answer(const wire::GrpcHostBufferReadFromDiskRequest& request, wire::GrpcHostBufferReadFromDiskResponse*) {
    server_.state.OnStored(request.metadata().handle());
    unlink(absl::StrCat(server_.state.options().directory, "/lt_", request.metadata().handle()).c_str());
  }
};

int Serve(const Options& options) {
  Server server(options);
  grpc::ServerBuilder builder;
  builder.AddListeningPort(options.listen, grpc::InsecureServerCredentials());
  if (!options.unix_path.empty()) {
    builder.AddListeningPort("unix:" + options.unix_path, grpc::InsecureServerCredentials());
  }
  builder.SetMaxReceiveMessageSize(-1);
  builder.SetMaxSendMessageSize(-1);
  builder.AddChannelArgument("grpc.http2.max_frame_size", 1 << 20);
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  builder.RegisterService(&server.service);
  server.queue = builder.AddCompletionQueue();
  auto grpc_server = builder.BuildAndStart();
  if (grpc_server == nullptr) {
    fprintf(stderr, "null_proxy: can't listen on %s\n", options.listen.c_str());
    return 1;
  }
  new Session(server);
  new Store(server);
  new Lookup(server);
  GetVersion::Accept(server);
  Delete::Accept(server);
  ReadFromDisk::Accept(server);
  printf("null proxy on %s\n", options.listen.c_str());
  fflush(stdout);
  void* tag = nullptr;
  bool ok = false;
  while (server.queue->Next(&tag, &ok)) static_cast<Tag*>(tag)->Run(ok);
  return 0;
}

}  // namespace
}  // namespace parkway::bench

int main(int argc, char** argv) {
  parkway::bench::Options options;
  CLI::App app{"An IFRT proxy that computes nothing: the floor of the benchmarks"};
  app.add_option("--listen", options.listen, "host:port");
  app.add_option("--unix", options.unix_path, "path of a unix socket, beside the port");
  app.add_option("--devices", options.devices, "devices that the client sees");
  app.add_option("--python", options.python, "Python with jaxlib, which reads the types of programs");
  app.add_option("--types_script", options.types_script, "null_proxy_types.py")->required();
  app.add_option("--directory", options.directory, "the client's large-transfer directory");
  CLI11_PARSE(app, argc, argv);
  return parkway::bench::Serve(options);
}
