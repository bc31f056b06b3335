// The core's side of a session. Requests take effect here at once, in the client's order: handles appear, arrays are
// marked deleted, errors are found that can be found. What engines must do becomes an Operation for the sequencer; it
// holds references to the arrays that it uses, so that deleting them meanwhile is harmless.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/functional/function_ref.h"
#include "runtime/core.h"
#include "runtime/engines.h"
#include "runtime/program.h"
#include "runtime/sequencer.h"
#include "runtime/session.h"

namespace parkway::runtime {

// What all sessions share.
struct CoreState {
  CoreOptions options;
  std::unique_ptr<Engines> engines;
  std::unique_ptr<Contexts> contexts;
  std::unique_ptr<Sequencer> sequencer;
  uint64_t programs_run = 0;
};

// "f32[8,4]", for messages.
std::string DescribeSpec(const ArraySpec& spec);

class SessionImpl : public Session {
 public:
  SessionImpl(CoreState* core, uint64_t id, std::string name, std::function<void(SessionImpl*)> closed);
  ~SessionImpl() override;

  absl::Status MakeArrayFromHostBuffer(Handle result, const ArraySpec& spec, PendingBytesRef bytes,
                                       std::vector<int64_t> byte_strides) override;
  absl::Status MakeArrayFromHostShards(Handle result, const ArraySpec& spec, std::vector<HostShards> shards) override;
  absl::Status MakeErrorArray(Handle result, const ArraySpec& spec, absl::Status error) override;
  absl::Status Assemble(Handle result, const ArraySpec& spec, absl::Span<const Handle> arrays,
                        CopySemantics semantics) override;
  absl::Status Disassemble(Handle array, absl::Span<const Handle> results, CopySemantics semantics) override;
  absl::Status FullyReplicatedShard(Handle array, Handle result, CopySemantics semantics) override;
  absl::Status Copy(absl::Span<const Handle> arrays, absl::Span<const Handle> results, ifrt::DeviceListPtr devices,
                    std::optional<std::string> memory_kind, CopySemantics semantics) override;
  absl::Status Remap(absl::Span<const Handle> arrays, absl::Span<const Handle> results,
                     std::vector<RemapOutput> outputs, CopySemantics semantics) override;
  absl::Status Reshard(absl::Span<const Handle> arrays, absl::Span<const Handle> results, std::vector<ArraySpec> specs,
                       CopySemantics semantics) override;
  absl::Status Bitcast(absl::Span<const Handle> arrays, absl::Span<const Handle> results, std::vector<ArraySpec> specs,
                       CopySemantics semantics) override;
  absl::StatusOr<Handle> Delete(absl::Span<const Handle> arrays) override;
  void Destruct(absl::Span<const Handle> arrays) override;
  absl::StatusOr<bool> IsDeleted(Handle array) override;
  void WhenReady(absl::Span<const Handle> values, StatusCallback done) override;
  void Read(Handle array, absl::AnyInvocable<void(absl::StatusOr<Bytes>)> done) override;
  absl::StatusOr<ArraySpec> Describe(Handle array) const override;
  void CheckFuture(Handle future, StatusCallback done) override;
  void Compile(CompileRequest request, absl::AnyInvocable<void(absl::StatusOr<CompileReply>)> done) override;
  absl::StatusOr<CompileReply> CompileReshard(ReshardRequest request) override;
  absl::StatusOr<CompileReply> Executable(Handle executable) const override;
  absl::StatusOr<ExecuteReply> Execute(const ExecuteRequest& request) override;
  absl::Status DestructExecutable(Handle executable) override;
  bool HasCredit() const override;
  void OnCredit(absl::AnyInvocable<void()> resume) override;
  SessionStats Stats() const override;

  uint64_t id() const { return id_; }
  const std::string& name() const { return name_; }

 private:
  struct Future {
    bool settled = false;
    absl::Status status;
    std::vector<StatusCallback> waiters;
  };
  using FutureRef = std::shared_ptr<Future>;

  // What one operation takes of the session's credit, from when it is submitted until it has ended, however it ends.
  class Credit {
   public:
    Credit(SessionImpl* session, int64_t bytes);
    ~Credit();
    Credit(const Credit&) = delete;
    Credit& operator=(const Credit&) = delete;

   private:
    SessionImpl* session_;
    std::shared_ptr<bool> alive_;
    int64_t bytes_;
  };

  // An executable that the core itself runs.
  struct ReshardProgram {
    ReshardRequest request;
    std::shared_ptr<const CompiledProgram> described;  // what a client may ask of any executable
    std::vector<ifrt::ShardingPtr> accepted;           // by argument: the last one that was found to fit
    std::vector<ArraySpec> outputs;                    // of the first execution; empty before it
  };

  // A plan to move bytes between shards (session_moves.cc).
  struct Move;

  Handle NewHandle() { return next_handle_++; }
  Handle NewFuture(bool settled, absl::Status status = absl::OkStatus());
  static void Settle(Future& future, absl::Status status);

  // The array of a handle that is there and not deleted; INVALID_ARGUMENT naming `what` and the handle otherwise.
  absl::StatusOr<ArrayRecord*> Find(Handle array, absl::string_view what);
  absl::Status CheckNewHandle(Handle result) const;
  absl::Status CheckNewHandles(absl::Span<const Handle> results) const;  // none stands twice either
  void Put(Handle result, ArrayRecord record) { arrays_.insert_or_assign(result, std::move(record)); }
  // An array of that type whose every shard has the error.
  ArrayRecord ErrorRecord(const ArraySpec& spec, const absl::Status& error);
  // Leaves error arrays under the handles, typed where `specs` says, and returns the error.
  absl::Status FailResults(absl::Span<const Handle> results, absl::Span<const ArraySpec> specs, absl::Status error);
  // A record of new buffers for `spec`, made by such an operation.
  absl::StatusOr<ArrayRecord> NewRecord(const ArraySpec& spec, absl::string_view operation);
  // Has the device memory room for them?
  absl::Status CheckRoom(std::string what, const BuffersRef& buffers) const;
  // `bytes`: what it holds of the client's until it has ended.
  void Submit(OperationRef operation, int64_t bytes);

  absl::Status SubmitPut(Handle result, const ArraySpec& spec, ArrayRecord record, std::vector<HostShards> sources,
                         bool whole_source);
  absl::Status PutStrings(Handle result, const ArraySpec& spec, ArrayRecord record,
                          const std::vector<HostShards>& sources);
  absl::Status CheckHostShards(const ArraySpec& spec, const std::vector<HostShards>& shards, bool whole_source) const;

  absl::StatusOr<ArrayRecord> Rearranged(const ArraySpec& spec, absl::Span<const ArrayRecord* const> inputs,
                                         absl::Span<const RemapSource> sources, absl::string_view what);
  // New bytes for `spec` out of `input`: by shard position (`by_position`), or by region. `reinterpret`: other element
  // type.
  absl::Status SubmitMove(const ArrayRecord& input, const ArraySpec& spec, const ArrayRecord& output, bool by_position,
                          bool reinterpret, std::string what);
  void IssueMove(Move& move, const BuffersRef& buffers, const std::string& what, Issued issued);
  // Tells the shard's host to offer a box of it, which has `bytes` bytes; the way to them.
  Transfer ExportBox(const Shard& shard, const ifrt::Region& box, int64_t bytes);
  absl::StatusOr<ArrayRecord> ReshardOne(const ArrayRecord& input, const ArraySpec& spec);
  absl::Status CopyOne(Handle array, Handle result, const ifrt::DeviceListPtr& devices,
                       const std::optional<std::string>& memory_kind);
  absl::Status CopyStrings(const ArrayRecord& input, Handle result, const ArraySpec& spec);
  absl::Status MoveAll(absl::Span<const Handle> arrays, absl::Span<const Handle> results,
                       absl::Span<const ArraySpec> specs, CopySemantics semantics, absl::string_view what,
                       absl::FunctionRef<absl::StatusOr<ArrayRecord>(const ArrayRecord&, const ArraySpec&)> one);
  void FinishInput(Handle array, CopySemantics semantics);

  absl::Status CheckArgument(Program& program, int index, const ArrayRecord& array);
  absl::StatusOr<std::vector<ArrayRecord>> GatherArguments(Program& program, const ExecuteRequest& request);
  void Launch(const std::shared_ptr<Program>& program, std::vector<ArrayRecord> arguments,
              const std::vector<int>& donated, std::vector<BuffersRef> outputs, int launch_id, uint64_t context,
              const FutureRef& status, Issued issued);
  absl::Status CheckLaunch(Program& program, absl::Span<const ArrayRecord> arguments, const std::vector<int>& donated,
                           const std::vector<BuffersRef>& outputs) const;

  // session_reshard.cc
  absl::StatusOr<ArrayRecord> ReshardArgument(ReshardProgram& program, int index, Handle array);
  absl::StatusOr<std::vector<ArrayRecord>> ReshardAll(ReshardProgram& program, const ExecuteRequest& request);
  absl::StatusOr<ExecuteReply> ExecuteReshard(ReshardProgram& program, const ExecuteRequest& request);

  CoreState* core_;
  const uint64_t id_;
  const std::string name_;
  std::function<void(SessionImpl*)> closed_;
  const HolderRef holder_;
  absl::flat_hash_map<Handle, ArrayRecord> arrays_;
  absl::flat_hash_map<Handle, FutureRef> futures_;
  absl::flat_hash_map<std::string, MadeBy> made_by_;  // the operations there are
  absl::flat_hash_map<Handle, std::shared_ptr<Program>> programs_;
  absl::flat_hash_map<Handle, std::unique_ptr<ReshardProgram>> reshards_;
  absl::flat_hash_set<uint64_t> compiles_;  // jobs that run
  std::vector<absl::AnyInvocable<void()>> on_credit_;
  Handle next_handle_ = Handle{1} << 48;
  int operations_ = 0;        // submitted and not ended
  int64_t bytes_coming_ = 0;  // of the client's, that no engine has taken yet
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace parkway::runtime
