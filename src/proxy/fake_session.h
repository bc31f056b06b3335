// For tests: a session that keeps the bytes of arrays and computes nothing, and a core that opens such sessions.
// Programs return their first argument. Everything in one executor's tasks, as with the real ones.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/executor.h"
#include "runtime/core.h"
#include "runtime/session.h"

namespace parkway::proxy {

struct FakeArray {
  runtime::ArraySpec spec;
  absl::StatusOr<Bytes> bytes = absl::UnknownError("pending");
  bool ready = false;
  bool deleted = false;
  std::vector<std::function<void()>> waiters;
};

class FakeSession : public runtime::Session {
 public:
  using Handle = runtime::Handle;
  using ArraySpec = runtime::ArraySpec;
  explicit FakeSession(Executor* executor) : executor_(executor) {}
  ~FakeSession() override {
    *alive_ = false;
    if (on_destroyed) on_destroyed();
  }

  absl::Status MakeArrayFromHostBuffer(Handle result, const ArraySpec& spec, runtime::PendingBytesRef bytes,
                                       std::vector<int64_t> byte_strides) override {
    calls.push_back(absl::StrCat("make ", result));
    strides = byte_strides;
    Await(result, spec, std::move(bytes));
    return absl::OkStatus();
  }
  absl::Status MakeArrayFromHostShards(Handle result, const ArraySpec& spec,
                                       std::vector<runtime::HostShards> shards) override {
    calls.push_back(absl::StrCat("make ", result, " of ", shards.size(), " buffers"));
    Await(result, spec, shards[0].bytes);
    return absl::OkStatus();
  }
  absl::Status MakeErrorArray(Handle result, const ArraySpec& spec, absl::Status error) override {
    calls.push_back(absl::StrCat("error ", result));
    Set(result, spec, std::move(error));
    return absl::OkStatus();
  }
  absl::Status Assemble(Handle result, const ArraySpec& spec, absl::Span<const Handle> from,
                        runtime::CopySemantics) override {
    calls.push_back(absl::StrCat("assemble ", result, " of ", from.size()));
    Set(result, spec, Bytes{});
    return absl::OkStatus();
  }
  absl::Status Disassemble(Handle array, absl::Span<const Handle> results, runtime::CopySemantics) override {
    return Each("disassemble", array, results);
  }
  absl::Status FullyReplicatedShard(Handle array, Handle result, runtime::CopySemantics) override {
    return Each("shard", array, {&result, 1});
  }
  absl::Status Copy(absl::Span<const Handle> from, absl::Span<const Handle> results, ifrt::DeviceListPtr devices,
                    std::optional<std::string> memory_kind, runtime::CopySemantics) override {
    calls.push_back(absl::StrCat("copy to ", devices == nullptr ? "the same" : devices->ToString(), " ",
                                 memory_kind.value_or("default")));
    for (size_t i = 0; i < results.size(); ++i) arrays[results[i]] = arrays[from[i]];
    return absl::OkStatus();
  }
  absl::Status Remap(absl::Span<const Handle>, absl::Span<const Handle> results,
                     std::vector<runtime::RemapOutput> outputs, runtime::CopySemantics) override {
    calls.push_back(absl::StrCat("remap to ", outputs.size()));
    for (size_t i = 0; i < results.size(); ++i) Set(results[i], outputs[i].spec, Bytes{});
    return absl::OkStatus();
  }
  absl::Status Reshard(absl::Span<const Handle>, absl::Span<const Handle> results, std::vector<ArraySpec> specs,
                       runtime::CopySemantics) override {
    calls.push_back(absl::StrCat("reshard to ", specs.size()));
    for (size_t i = 0; i < results.size(); ++i) Set(results[i], specs[i], Bytes{});
    return absl::OkStatus();
  }
  absl::Status Bitcast(absl::Span<const Handle>, absl::Span<const Handle>, std::vector<ArraySpec> specs,
                       runtime::CopySemantics) override {
    calls.push_back(absl::StrCat("bitcast to ", specs.size()));
    return absl::OkStatus();
  }
  absl::StatusOr<Handle> Delete(absl::Span<const Handle> handles) override {
    for (Handle handle : handles) arrays[handle].deleted = true;
    futures[next_] = absl::OkStatus();
    return next_++;
  }
  void Destruct(absl::Span<const Handle> handles) override {
    for (Handle handle : handles) arrays.erase(handle);
  }
  absl::StatusOr<bool> IsDeleted(Handle array) override {
    if (!arrays.contains(array)) return Unknown(array);
    return arrays[array].deleted;
  }
  void WhenReady(absl::Span<const Handle> values, StatusCallback done) override {
    auto state = std::make_shared<std::pair<size_t, StatusCallback>>(values.size(), std::move(done));
    for (Handle value : values) {
      if (!arrays.contains(value)) return state->second(Unknown(value));
    }
    for (Handle value : values) {
      OnReady(value, [this, value, state] {
        if (--state->first == 0) state->second(arrays[value].bytes.status());
      });
    }
  }
  void Read(Handle array, absl::AnyInvocable<void(absl::StatusOr<Bytes>)> done) override {
    if (!arrays.contains(array)) return done(Unknown(array));
    auto shared = std::make_shared<absl::AnyInvocable<void(absl::StatusOr<Bytes>)>>(std::move(done));
    OnReady(array, [this, array, shared] { (*shared)(arrays[array].bytes); });
  }
  absl::StatusOr<ArraySpec> Describe(Handle array) const override {
    auto it = arrays.find(array);
    if (it == arrays.end()) return Unknown(array);
    return it->second.spec;
  }
  void CheckFuture(Handle future, StatusCallback done) override {
    auto node = futures.extract(future);
    done(node.empty() ? absl::InvalidArgumentError("no such future") : node.mapped());
  }
  void Compile(runtime::CompileRequest request,
               absl::AnyInvocable<void(absl::StatusOr<runtime::CompileReply>)> done) override {
    compiled = request;
    if (!compile_error.ok()) return done(compile_error);
    runtime::CompileReply reply{.executable = next_++,
                                .ready_future = next_++,
                                .program = std::make_shared<CompiledProgram>(program),
                                .devices = request.devices};
    futures[reply.ready_future] = absl::OkStatus();
    executables[reply.executable] = reply;
    done(reply);
  }
  absl::StatusOr<runtime::CompileReply> CompileReshard(runtime::ReshardRequest request) override {
    resharded = std::move(request);
    const auto devices = resharded.inputs[0]->devices()->ids();
    runtime::CompileReply reply{.executable = next_++,
                                .ready_future = next_++,
                                .program = std::make_shared<CompiledProgram>(program),
                                .devices = {devices.begin(), devices.end()}};
    executables[reply.executable] = reply;
    return reply;
  }
  absl::StatusOr<runtime::CompileReply> Executable(Handle executable) const override {
    auto it = executables.find(executable);
    if (it == executables.end()) return Unknown(executable);
    return it->second;
  }
  absl::StatusOr<runtime::ExecuteReply> Execute(const runtime::ExecuteRequest& request) override {
    if (!executables.contains(request.executable)) return Unknown(request.executable);
    runtime::ExecuteReply reply;
    const Handle result = request.results.empty() ? next_++ : request.results[0];
    arrays[result] = arrays[request.arguments[0]];
    reply.outputs.push_back({.spec = output_spec.value_or(arrays[result].spec), .handle = result});
    reply.status_handle = request.status_handle != 0 ? request.status_handle : next_++;
    futures[reply.status_handle] = absl::OkStatus();
    return reply;
  }
  absl::Status DestructExecutable(Handle executable) override {
    return executables.erase(executable) > 0 ? absl::OkStatus() : absl::Status(Unknown(executable));
  }
  bool HasCredit() const override { return credit; }
  void OnCredit(absl::AnyInvocable<void()> resume) override { resume_ = std::move(resume); }
  runtime::SessionStats Stats() const override { return {}; }

  void GiveCredit() {
    credit = true;
    if (resume_) std::exchange(resume_, nullptr)();
  }

  std::vector<std::string> calls;
  std::vector<int64_t> strides;
  std::map<Handle, FakeArray> arrays;
  std::map<Handle, absl::Status> futures;
  std::map<Handle, runtime::CompileReply> executables;
  runtime::CompileRequest compiled;
  runtime::ReshardRequest resharded;
  CompiledProgram program;
  absl::Status compile_error;
  std::optional<ArraySpec> output_spec;
  bool credit = true;
  std::function<void()> on_destroyed;

 private:
  static absl::Status Unknown(Handle handle) {
    return absl::InvalidArgumentError(absl::StrCat("there is nothing under handle ", handle));
  }
  absl::Status Each(const char* what, Handle array, absl::Span<const Handle> results) {
    calls.push_back(absl::StrCat(what, " ", array, " to ", results.size()));
    for (Handle result : results) arrays[result] = arrays[array];
    return absl::OkStatus();
  }
  void Set(Handle handle, const ArraySpec& spec, absl::StatusOr<Bytes> bytes) {
    FakeArray& array = arrays[handle];
    array.spec = spec;
    array.bytes = std::move(bytes);
    array.ready = true;
    for (auto& waiter : std::exchange(array.waiters, {})) waiter();
  }
  void Await(Handle handle, const ArraySpec& spec, const runtime::PendingBytesRef& bytes) {
    arrays[handle].spec = spec;
    bytes->When([this, handle, spec, alive = alive_](const absl::StatusOr<Bytes>& set) {
      executor_->Post([this, handle, spec, alive, set] {
        if (*alive) Set(handle, spec, set);
      });
    });
  }
  void OnReady(Handle handle, std::function<void()> then) {
    FakeArray& array = arrays[handle];
    if (array.ready) return then();
    array.waiters.push_back(std::move(then));
  }

  Executor* executor_;
  absl::AnyInvocable<void()> resume_;
  Handle next_ = Handle{1} << 48;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

class FakeCore : public runtime::Core {
 public:
  FakeCore(Executor* executor, runtime::Topology topology) : executor_(executor), topology_(std::move(topology)) {}
  const runtime::Topology& topology() const override { return topology_; }
  std::unique_ptr<runtime::Session> OpenSession(std::string) override {
    auto session = std::make_unique<FakeSession>(executor_);
    last = session.get();
    ++open;
    session->on_destroyed = [this] { --open; };
    if (prepare) prepare(*session);
    return session;
  }
  void CancelPrograms(uint64_t session, const std::string& by) override {
    events.push_back(absl::StrCat("cancel ", session, " ", by));
  }
  void OnEngineUp(int host, const EngineHello& hello, std::unique_ptr<runtime::EngineLink> link) override {
    events.push_back(absl::StrCat("up ", host, " ", hello.incarnation()));
    links[host] = std::move(link);
  }
  void OnEvents(int host, uint64_t incarnation, const Events& got) override {
    events.push_back(absl::StrCat("events ", host, " ", incarnation, " ", got.done_size()));
  }
  void OnEngineDown(int host, uint64_t incarnation, absl::Status cause, bool returns) override {
    events.push_back(
        absl::StrCat("down ", host, " ", incarnation, returns ? " returns: " : ": ", std::string(cause.message())));
    links.erase(host);
  }
  runtime::CoreStats Stats() const override { return {}; }

  std::vector<std::string> events;
  std::map<int, std::unique_ptr<runtime::EngineLink>> links;
  FakeSession* last = nullptr;
  std::atomic<int> open{0};
  std::function<void(FakeSession&)> prepare;

 private:
  Executor* executor_;
  runtime::Topology topology_;
};

}  // namespace parkway::proxy
