// The seam between Parkway and what computes. An Engine owns the devices of one host: it makes arrays out of bytes,
// loads and launches executables, hands bytes back. Everything above (operations, ordering, errors by shard, transfers)
// is engine/host.h's; everything below (XLA, Python, a simulation) is the engine's own.
//
// Threads. Every method may be called from several threads at once, with one exception: Launch of one context is called
// from one thread at a time (not always the same one), in the order of operations. Launch may block while a tiny
// program runs inline, and Load while it builds code; nothing else may block for long. Callbacks come on any thread,
// once, perhaps before the method that took them returns, and must not block.
//
// Errors. A call that returns a Status that is not OK had no effect. What is found later comes through `done`; an
// output of a failed launch is an array whose View fails with the same error.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/bytes.h"
#include "ifrt/argument.h"
#include "ifrt/dtype.h"

namespace parkway::engine {

// dtype and dims of one shard.
struct Type {
  ifrt::DType dtype{};
  std::vector<int64_t> dims;
  friend bool operator==(const Type&, const Type&) = default;
};

// What is wrong with a shard as an argument for a parameter (ifrt/argument.h); none when it fits.
inline std::optional<std::string> Mismatch(const Type& shard, const Type& parameter) {
  return ifrt::ArgumentMismatch(shard.dtype, shard.dims, parameter.dtype, parameter.dims);
}

struct Capabilities {
  std::string platform;                   // "cpu"
  std::string version;                    // "jaxlib 0.12.0.1"
  int devices = 0;                        // local devices, numbered from 0
  std::vector<std::string> memory_kinds;  // the first is the default
  bool compiles_on_device = false;        // true: programs must be compiled by this engine itself
  bool launch_may_block = true;           // false: Launch returns at once, whatever the program and its peers do
  std::string cpu_features;               // part of the key of a compile
};

// The local shards of one array: at most one on each local device. Immutable. Dropping the last reference frees them.
class Array {
 public:
  virtual ~Array() = default;
  virtual absl::Span<const int> devices() const = 0;  // local devices with a shard, in the array's order
  virtual const Type& type(int device) const = 0;     // of the shard on `device`
};
using ArrayRef = std::shared_ptr<Array>;

// Hosts that run collectives together; context 0 (null) is this host alone.
class Context {
 public:
  virtual ~Context() = default;
  // A coordination key that another member published.
  virtual void OnKey(const std::string& key, const std::string& value) = 0;
};
using ContextRef = std::shared_ptr<Context>;

class Executable {
 public:
  virtual ~Executable() = default;
};
using ExecutableRef = std::shared_ptr<Executable>;

struct HostShard {
  int device = 0;
  Type type;
  Bytes bytes;  // dense, row-major; sub-byte types and bool one byte per element; may be aliased when 64-byte aligned
};

struct ShardOf {
  ArrayRef array;
  int device = 0;
};

struct ContextMember {
  int rank = 0;
  std::vector<int> devices;  // lease device ids
};
struct ContextSpec {
  uint64_t id = 0;
  int rank = 0;  // of this host
  std::vector<ContextMember> members;
  // Publishes a coordination key to the other members.
  absl::AnyInvocable<void(std::string key, std::string value)> publish;
};

struct LoadSpec {
  ContextRef context;  // null: local
  std::string name;
  Bytes program;                   // serialized executable
  std::string compile_options;     // serialized xla.CompileOptionsProto
  std::vector<int> device_ids;     // lease device ids in the executable's order, all hosts
  std::vector<int> local_devices;  // for each of them: local device, or -1 when it is another host's
  std::vector<Type> parameters;    // of one shard
  std::vector<Type> outputs;       // of one shard
  std::vector<std::string> output_memory_kinds;
};

struct LaunchResult {
  std::vector<ArrayRef> outputs;
};

class Engine {
 public:
  virtual ~Engine() = default;
  virtual const Capabilities& capabilities() const = 0;

  virtual absl::StatusOr<ArrayRef> MakeArray(const std::string& memory_kind, std::vector<HostShard> shards) = 0;
  // An array of shards of other arrays (at most one for each local device); shares their bytes.
  virtual absl::StatusOr<ArrayRef> Assemble(absl::Span<const ShardOf> shards) = 0;
  // Zero-filled shards that cost no memory: stand-ins for lost inputs of a member that must join a collective.
  virtual absl::StatusOr<ArrayRef> Zeros(absl::Span<const int> devices, const Type& type) = 0;

  // The dense row-major bytes of a shard, once they are ready. The view keeps the shard alive.
  virtual void View(const ArrayRef& array, int device, absl::AnyInvocable<void(absl::StatusOr<Bytes>)> done) = 0;
  // Fires when all local shards are ready, or with the first error once none is pending.
  virtual void WhenReady(const ArrayRef& array, absl::AnyInvocable<void(absl::Status)> done) = 0;

  virtual void OpenContext(ContextSpec spec, absl::AnyInvocable<void(absl::StatusOr<ContextRef>)> done) = 0;
  // Cuts the context's connections so that hung collectives end, waits for all local outputs, drops the client.
  virtual void CloseContext(const ContextRef& context, absl::Status cause, absl::AnyInvocable<void()> done) = 0;

  virtual absl::StatusOr<ExecutableRef> Load(const LoadSpec& spec) = 0;
  // `arguments` has one array per parameter, its shards on the executable's local devices. `done` comes when every
  // local output is ready or failed: an error on one output does not mean that the launch ended.
  virtual absl::StatusOr<LaunchResult> Launch(Executable& executable, absl::Span<const ArrayRef> arguments,
                                              absl::Span<const int> donated,
                                              absl::AnyInvocable<void(absl::Status)> done) = 0;
};

}  // namespace parkway::engine
