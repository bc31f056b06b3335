// Requests of one client, decoded and handed to its session of the core, and what comes back, encoded as replies. All
// checks of form are made here; checks against what exists (handles, shapes of arrays) are the session's.
//
// Every method runs inside a task of the core's executor, which is also where replies are made: at once, or when the
// core calls back. Destroying the dispatcher drops what is still awaited.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/executor.h"
#include "ifrt/sharding_wire.h"
#include "proto/ifrt/ifrt_service.pb.h"
#include "proxy/host_buffers.h"
#include "proxy/reply.h"
#include "runtime/session.h"
#include "runtime/topology.h"

namespace parkway::proxy {

class Dispatcher {
 public:
  struct Options {
    const Executor* executor = nullptr;           // for the time
    const runtime::Topology* topology = nullptr;  // outlives the dispatcher
    uint64_t session_id = 0;
    HostBuffersRef buffers;
    std::unique_ptr<runtime::Session> session;
    ReplySink* sink = nullptr;  // outlives the dispatcher
  };
  explicit Dispatcher(Options options);
  ~Dispatcher();
  Dispatcher(const Dispatcher&) = delete;

  void Handle(const xla::ifrt::proxy::IfrtRequest& request);

  runtime::Session& session() { return *options_.session; }

 private:
  using Request = xla::ifrt::proxy::IfrtRequest;
  using Handles = absl::Span<const runtime::Handle>;

  Reply MakeReply(const Request& request, Reply::Kind kind);
  bool HandleArrays(const Request& request);
  bool HandleMoves(const Request& request);
  bool HandlePrograms(const Request& request);
  bool HandleQueries(const Request& request);
  void HandleUnimplemented(const Request& request);

  // ---- dispatch_arrays.cc: making, reading and deleting arrays
  absl::Status MakeArrayFromHostBuffer(const xla::ifrt::proxy::MakeArrayFromHostBufferRequest& request);
  absl::Status MakeArraysFromHostBufferShards(const xla::ifrt::proxy::MakeArraysFromHostBufferShardsRequest& request);
  absl::Status MakeArrayFromShards(
      runtime::Handle result,
      const xla::ifrt::proxy::MakeArraysFromHostBufferShardsRequest::MakeArraysFromHostBufferShardsSpec& spec,
      std::vector<runtime::PendingBytesRef> bytes);
  absl::Status MakeErrorArrays(const xla::ifrt::proxy::MakeErrorArraysRequest& request);
  void CopyToHostBuffer(const xla::ifrt::proxy::CopyToHostBufferRequest& request, Reply reply);
  void DeleteArrays(const xla::ifrt::proxy::DeleteArrayRequest& request, Reply reply);
  void CheckFuture(const xla::ifrt::proxy::CheckFutureRequest& request, Reply reply);

  // ---- dispatch_moves.cc: arrays from arrays
  absl::Status Assemble(const xla::ifrt::proxy::AssembleArrayFromSingleDeviceArraysRequest& request);
  absl::Status Disassemble(const xla::ifrt::proxy::DisassembleIntoSingleDeviceArraysRequest& request);
  absl::Status FullyReplicatedShard(const xla::ifrt::proxy::FullyReplicatedShardRequest& request);
  absl::Status Copy(const xla::ifrt::proxy::CopyArraysRequest& request);
  absl::Status Remap(const xla::ifrt::proxy::RemapArraysRequest& request);
  absl::Status Reshard(const xla::ifrt::proxy::ReshardArraysRequest& request);
  absl::Status Bitcast(const xla::ifrt::proxy::BitcastArraysRequest& request);

  // ---- dispatch_programs.cc
  void Compile(const xla::ifrt::proxy::CompileRequest& request, Reply reply);
  absl::Status CompilePlugin(const std::string& program, xla::ifrt::proxy::CompileResponse* response);
  void Execute(const xla::ifrt::proxy::LoadedExecutableExecuteRequest& request, Reply reply);
  void FetchExecuteResult(const xla::ifrt::proxy::LoadedExecutableFetchExecuteResultRequest& request, Reply reply);
  void Metadata(runtime::Handle executable, Reply reply);
  void CostAnalysis(runtime::Handle executable, Reply reply);
  void ProgramText(runtime::Handle executable, Reply reply);

  // ---- dispatch_queries.cc
  void DefaultLayout(const xla::ifrt::proxy::GetDefaultLayoutRequest& request, Reply reply);
  void DefaultDeviceAssignment(const xla::ifrt::proxy::GetDefaultDeviceAssignmentRequest& request, Reply reply);

  // Decoding, with what only this proxy knows: its devices and memory kinds.
  absl::StatusOr<runtime::ArraySpec> DecodeSpec(const xla::ifrt::DTypeProto& dtype, const xla::ifrt::ShapeProto& shape,
                                                const xla::ifrt::ShardingProto& sharding);
  absl::StatusOr<std::vector<runtime::ArraySpec>> DecodeSpecs(
      const google::protobuf::RepeatedPtrField<xla::ifrt::ArraySpecProto>& specs);
  absl::Status CheckPlace(const ifrt::Sharding& sharding) const;
  absl::Status CheckDevice(int64_t id) const;
  // Leaves the error under all these handles, where the client will look for arrays. Returns it.
  absl::Status FailArrays(Handles results, absl::Status error);

  Options options_;
  std::shared_ptr<ReplyState> replies_;
  ifrt::ShardingCache shardings_;
  absl::flat_hash_set<runtime::Handle> deletions_;  // futures of deletions that the client has not checked yet
};

// Handles that a client chose for arrays or buffers: 1 to 2^48 - 1, at most limits::kMaxHandlesPerRequest.
absl::Status CheckClientHandles(absl::Span<const runtime::Handle> handles);

}  // namespace parkway::proxy
