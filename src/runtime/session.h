// One client's view of the core: its arrays, executables and futures under the handles that it chose. The proxy decodes
// a request, calls the one method for it here, and encodes what comes back; this is the whole interface between them.
//
// Threads. Every method is called inside a task of the core's executor, requests in the order of their arrival, so that
// a handle made by one request can be used by the next. Callbacks run inside a task too, perhaps before the method
// returns.
//
// Errors are values. A method that makes arrays always leaves something under the result handles: when the operation
// can't be done it leaves error arrays that carry the cause, and returns the cause, so that the client meets it where
// it uses the array. Handles from a client are < 2^48; handles made here are not.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/bytes.h"
#include "ifrt/array_spec.h"
#include "ifrt/device_list.h"
#include "ifrt/dtype.h"
#include "ifrt/remap.h"
#include "ifrt/shape.h"
#include "ifrt/sharding.h"
#include "proto/parkway/compiler.pb.h"
#include "runtime/pending_bytes.h"

namespace parkway::runtime {

using Handle = uint64_t;

using ifrt::ArraySpec;
using ifrt::RemapOutput;
using ifrt::RemapSource;

// What happens to the input of an operation that makes new arrays of it.
enum class CopySemantics { kAlwaysCopy, kReuseInput, kDonateInput };

// A host buffer and the shards (positions in the sharding) that are made of it, each of all of it.
struct HostShards {
  PendingBytesRef bytes;
  ifrt::DType dtype{};
  ifrt::Shape shape;
  std::vector<int64_t> byte_strides;  // empty: dense row-major
  std::vector<int> shards;
};

struct CompileRequest {
  std::string program;          // StableHLO portable artifact
  std::string compile_options;  // serialized xla.CompileOptionsProto
  std::vector<int> devices;     // device ids, replica-major, as in the device assignment
};
// Arrays to other shardings. Each input has its own devices, but as many as the others.
struct ReshardRequest {
  bool donate = false;
  std::vector<ifrt::ShardingPtr> inputs, outputs;  // one for each array
};
struct CompileReply {
  Handle executable = 0;
  Handle ready_future = 0;
  std::shared_ptr<const CompiledProgram> program;
  std::vector<int> devices;
};

struct ExecuteRequest {
  Handle executable = 0;
  absl::Span<const Handle> arguments;
  absl::Span<const int> non_donatable;
  int launch_id = 0;
  absl::Span<const Handle> results;  // empty: the core chooses (first call)
  bool fill_status = false;
  Handle status_handle = 0;  // 0: the core chooses, when fill_status
};
struct ExecuteReply {
  Handle status_handle = 0;  // when fill_status
  struct Output {
    ArraySpec spec;
    Handle handle = 0;
  };
  std::vector<Output> outputs;
};

struct SessionStats {
  uint64_t arrays = 0, executables = 0;
  int64_t bytes_held = 0;  // in the engines' memory
  uint64_t session = 0;    // its number
  uint64_t launches = 0;   // not ended
  std::string program;     // of the oldest launch that is with the engines
  absl::Duration running;  // since that one was sent there
};

class Session {
 public:
  using StatusCallback = absl::AnyInvocable<void(absl::Status)>;
  virtual ~Session() = default;

  // ---- Arrays
  virtual absl::Status MakeArrayFromHostBuffer(Handle result, const ArraySpec& spec, PendingBytesRef bytes,
                                               std::vector<int64_t> byte_strides) = 0;
  virtual absl::Status MakeArrayFromHostShards(Handle result, const ArraySpec& spec,
                                               std::vector<HostShards> shards) = 0;
  virtual absl::Status MakeErrorArray(Handle result, const ArraySpec& spec, absl::Status error) = 0;
  virtual absl::Status Assemble(Handle result, const ArraySpec& spec, absl::Span<const Handle> arrays,
                                CopySemantics semantics) = 0;
  virtual absl::Status Disassemble(Handle array, absl::Span<const Handle> results, CopySemantics semantics) = 0;
  virtual absl::Status FullyReplicatedShard(Handle array, Handle result, CopySemantics semantics) = 0;
  // Null devices: the same; no memory kind: the same.
  virtual absl::Status Copy(absl::Span<const Handle> arrays, absl::Span<const Handle> results,
                            ifrt::DeviceListPtr devices, std::optional<std::string> memory_kind,
                            CopySemantics semantics) = 0;
  virtual absl::Status Remap(absl::Span<const Handle> arrays, absl::Span<const Handle> results,
                             std::vector<RemapOutput> outputs, CopySemantics semantics) = 0;
  virtual absl::Status Reshard(absl::Span<const Handle> arrays, absl::Span<const Handle> results,
                               std::vector<ArraySpec> specs, CopySemantics semantics) = 0;
  virtual absl::Status Bitcast(absl::Span<const Handle> arrays, absl::Span<const Handle> results,
                               std::vector<ArraySpec> specs, CopySemantics semantics) = 0;

  // Frees the bytes; the handles stay until Destruct. Returns a future for CheckFuture.
  virtual absl::StatusOr<Handle> Delete(absl::Span<const Handle> arrays) = 0;
  virtual void Destruct(absl::Span<const Handle> arrays) = 0;
  virtual absl::StatusOr<bool> IsDeleted(Handle array) = 0;
  // `done` when all are ready, or with the first error once none is pending. Works for arrays and futures.
  virtual void WhenReady(absl::Span<const Handle> values, StatusCallback done) = 0;
  // The bytes of a single-device or fully replicated array, dense row-major (strings: StringArrayContents).
  virtual void Read(Handle array, absl::AnyInvocable<void(absl::StatusOr<Bytes>)> done) = 0;
  // For messages and checks of the caller: type and sharding of an array, errors included.
  virtual absl::StatusOr<ArraySpec> Describe(Handle array) const = 0;
  // Consumes the future.
  virtual void CheckFuture(Handle future, StatusCallback done) = 0;

  // ---- Programs
  virtual void Compile(CompileRequest request, absl::AnyInvocable<void(absl::StatusOr<CompileReply>)> done) = 0;
  // A reshard as an executable: it takes arrays of any type that lie as the inputs say, and gives them as the outputs
  // say. The types of its first execution are those of all later ones, since clients take them for the later results'.
  virtual absl::StatusOr<CompileReply> CompileReshard(ReshardRequest request) = 0;
  virtual absl::StatusOr<CompileReply> Executable(Handle executable) const = 0;
  // An error means that nothing was made: the caller's first call raises it. With `results` given, error arrays stand
  // there.
  virtual absl::StatusOr<ExecuteReply> Execute(const ExecuteRequest& request) = 0;
  virtual absl::Status DestructExecutable(Handle executable) = 0;

  // ---- Flow control: false while the session has all its credits in use. The proxy then stops reading this session's
  // request stream (never its host buffers) until `resume` is called.
  virtual bool HasCredit() const = 0;
  virtual void OnCredit(absl::AnyInvocable<void()> resume) = 0;

  virtual SessionStats Stats() const = 0;
};

}  // namespace parkway::runtime
