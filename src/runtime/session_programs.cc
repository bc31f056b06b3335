// Programs of a session: compiling, checking arguments, launching.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/limits.h"
#include "base/status.h"
#include "ifrt/argument.h"
#include "runtime/session_impl.h"

namespace parkway::runtime {
namespace {

// Bytes that somebody else looks at too are not given away: the engine works on a copy.
bool MayGiveAway(const ArrayRecord& argument) { return argument.whole != nullptr && !argument.SharesBytes(); }

}  // namespace

// ---- Compile

void SessionImpl::Compile(CompileRequest request, absl::AnyInvocable<void(absl::StatusOr<CompileReply>)> done) {
  for (int device : request.devices) {
    if (!core_->options.topology.IsDevice(device)) {
      done(absl::InvalidArgumentError(absl::StrCat("compiling: ", core_->options.topology.Describe(device),
                                                   "; this cluster has devices 0 to ",
                                                   core_->options.topology.devices().size() - 1)));
      return;
    }
  }
  if (absl::Status valid = ifrt::DeviceList::Make(request.devices).status(); !valid.ok()) {
    done(Annotate(valid, "compiling: its devices"));
    return;
  }
  CompileJob job;
  job.set_job(core_->options.random());
  job.set_platform(core_->options.topology.slices()[0].platform);
  job.set_program(std::move(request.program));
  job.set_compile_options(std::move(request.compile_options));
  job.set_num_devices(static_cast<int>(request.devices.size()));
  uint64_t id = job.job();
  compiles_.insert(id);
  core_->options.compiler->Compile(
      id_, std::move(job),
      [this, id, alive = alive_, executor = core_->options.executor, devices = std::move(request.devices),
       done = std::move(done)](absl::StatusOr<CompiledProgram> compiled) mutable {
        executor->Post([this, id, alive = std::move(alive), devices = std::move(devices), done = std::move(done),
                        compiled = std::move(compiled)]() mutable {
          if (!*alive) return;
          compiles_.erase(id);
          if (!compiled.ok()) return done(compiled.status());
          auto program = std::make_shared<const CompiledProgram>(*std::move(compiled));
          absl::StatusOr<std::unique_ptr<Program>> made =
              Program::Make(std::move(program), std::move(devices), core_->engines.get(), &core_->options);
          if (!made.ok()) return done(made.status());
          Handle handle = NewHandle();
          programs_[handle] = *std::move(made);
          CompileReply reply = *Executable(handle);
          reply.ready_future = NewFuture(true);
          done(std::move(reply));
        });
      });
}

absl::StatusOr<CompileReply> SessionImpl::Executable(Handle executable) const {
  if (auto reshard = reshards_.find(executable); reshard != reshards_.end()) {
    const auto devices = reshard->second->request.inputs[0]->devices()->ids();
    return CompileReply{executable, 0, reshard->second->described, {devices.begin(), devices.end()}};
  }
  auto it = programs_.find(executable);
  if (it == programs_.end()) {
    return absl::InvalidArgumentError(
        absl::StrCat("there is no executable with handle ", executable,
                     " in this session. Executables of an earlier connection can't be used "
                     "after a reconnect: call jax.clear_caches()"));
  }
  return CompileReply{executable, 0, it->second->compiled_ref(), it->second->devices()};
}

absl::Status SessionImpl::DestructExecutable(Handle executable) {
  if (reshards_.erase(executable) > 0) return absl::OkStatus();
  auto it = programs_.find(executable);
  if (it == programs_.end()) return Executable(executable).status();
  programs_.erase(it);  // queued launches still hold it; the last one unloads it
  return absl::OkStatus();
}

// ---- Execute

absl::Status SessionImpl::CheckArgument(Program& program, int index, const ArrayRecord& array) {
  Program::Parameter& parameter = program.parameters()[index];
  if (std::optional<std::string> mismatch =
          ifrt::ArgumentMismatch(array.spec.dtype, array.spec.shape.dims(), parameter.dtype, parameter.shape.dims())) {
    return absl::InvalidArgumentError(absl::StrCat(program.Describe(), ": argument ", index, " is ", *mismatch));
  }
  if (array.spec.sharding == parameter.accepted) return absl::OkStatus();
  if (!array.spec.sharding->Fits(*parameter.sharding, parameter.shape)) {
    return absl::InvalidArgumentError(absl::StrCat(
        program.Describe(), ": argument ", index, " (", DescribeSpec(array.spec), ") lies on devices ",
        array.spec.sharding->devices()->ToString(), " as ", array.spec.sharding->ToString(), ", but the program takes ",
        parameter.sharding->ToString(), " on devices ", parameter.sharding->devices()->ToString()));
  }
  parameter.accepted = array.spec.sharding;
  return absl::OkStatus();
}

absl::StatusOr<std::vector<ArrayRecord>> SessionImpl::GatherArguments(Program& program, const ExecuteRequest& request) {
  if (request.arguments.size() != program.parameters().size()) {
    return absl::InvalidArgumentError(absl::StrCat(program.Describe(), " takes ", program.parameters().size(),
                                                   " arguments; ", request.arguments.size(), " were given"));
  }
  if (!request.results.empty() && request.results.size() != program.outputs().size()) {
    return absl::InvalidArgumentError(absl::StrCat(program.Describe(), " makes ", program.outputs().size(),
                                                   " results; ", request.results.size(), " handles were given"));
  }
  PARKWAY_RETURN_IF_ERROR(CheckNewHandles(request.results));
  std::vector<ArrayRecord> arguments;
  arguments.reserve(request.arguments.size());
  for (size_t i = 0; i < request.arguments.size(); ++i) {
    absl::StatusOr<ArrayRecord*> found = Find(request.arguments[i], "");
    if (!found.ok()) {
      return Annotate(found.status(), absl::StrCat(program.Describe(), ": argument ", i));
    }
    PARKWAY_RETURN_IF_ERROR(CheckArgument(program, static_cast<int>(i), **found));
    arguments.push_back(**found);
  }
  return arguments;
}

// What can only be known when it has its place in the order.
absl::Status SessionImpl::CheckLaunch(Program& program, absl::Span<const ArrayRecord> arguments,
                                      const std::vector<int>& donated, const std::vector<BuffersRef>& outputs) const {
  for (const ArrayRecord& argument : arguments) PARKWAY_RETURN_IF_ERROR(argument.Error());
  if (core_->engines->crashes(program.compiled().fingerprint()) >= limits::kCrashesUntilRefused) {
    return absl::FailedPreconditionError(absl::StrCat(program.Describe(), " is refused: it crashed its engine ",
                                                      limits::kCrashesUntilRefused, " times"));
  }
  if (!core_->engines->limited()) return absl::OkStatus();
  Engines::Demand demand{.what = program.Describe(), .outputs = outputs, .devices = program.devices()};
  for (int index : donated) {
    if (MayGiveAway(arguments[index])) demand.donated.push_back(arguments[index].whole->buffers());
  }
  demand.temporary = program.compiled().memory().temp_bytes();
  return core_->engines->CheckMemory(*holder_, demand);
}

absl::StatusOr<ExecuteReply> SessionImpl::Execute(const ExecuteRequest& request) {
  if (auto reshard = reshards_.find(request.executable); reshard != reshards_.end()) {
    return ExecuteReshard(*reshard->second, request);
  }
  auto it = programs_.find(request.executable);
  if (it == programs_.end()) return FailResults(request.results, {}, Executable(request.executable).status());
  std::shared_ptr<Program> program = it->second;
  absl::StatusOr<std::vector<ArrayRecord>> arguments = GatherArguments(*program, request);
  if (!arguments.ok()) {
    std::vector<ArraySpec> specs;
    for (const Program::Output& output : program->outputs()) specs.push_back(output.spec);
    return FailResults(request.results, specs, arguments.status());
  }

  ExecuteReply reply;
  std::vector<BuffersRef> outputs;
  reply.outputs.reserve(program->outputs().size());
  for (size_t i = 0; i < program->outputs().size(); ++i) {
    const Program::Output& output = program->outputs()[i];
    BuffersRef buffers = core_->engines->NewBuffers(holder_, output.spec, output.shard_bytes, program->label());
    Handle handle = request.results.empty() ? NewHandle() : request.results[i];
    reply.outputs.push_back(ExecuteReply::Output{output.spec, handle});
    Put(handle, ArrayRecord{output.spec, std::make_shared<Whole>(buffers), {}});
    outputs.push_back(std::move(buffers));
  }
  FutureRef future;
  if (request.fill_status) {
    reply.status_handle = request.status_handle != 0 ? request.status_handle : NewHandle();
    future = std::make_shared<Future>();
    futures_[reply.status_handle] = future;
  }
  std::vector<int> donated;
  for (size_t i = 0; i < arguments->size(); ++i) {
    if (!program->parameters()[i].may_donate) continue;
    bool keep = std::find(request.non_donatable.begin(), request.non_donatable.end(), static_cast<int>(i)) !=
                request.non_donatable.end();
    if (keep) continue;
    donated.push_back(static_cast<int>(i));
    arrays_[request.arguments[i]].Drop();
  }
  ++core_->programs_run;
  auto fail = [outputs, future](const absl::Status& why) {
    for (const BuffersRef& output : outputs) {
      output->FailAll(why);
      output->Settle();
    }
    if (future) Settle(*future, why);
  };
  auto issue = [this, program, arguments = *std::move(arguments), donated = std::move(donated), outputs, future,
                launch_id = request.launch_id](uint64_t context, Issued issued) mutable {
    Launch(program, std::move(arguments), donated, std::move(outputs), launch_id, context, future, std::move(issued));
    program.reset();
  };
  auto operation = std::make_shared<Operation>();
  operation->hosts = it->second->hosts();
  operation->context = it->second->spans_hosts();
  operation->launch = it->second->work();
  operation->issue = std::move(issue);
  operation->fail = std::move(fail);
  Submit(std::move(operation), 0);
  return reply;
}

void SessionImpl::Launch(const std::shared_ptr<Program>& program, std::vector<ArrayRecord> arguments,
                         const std::vector<int>& donated, std::vector<BuffersRef> outputs, int launch_id,
                         uint64_t context, const FutureRef& status, Issued issued) {
  absl::Status why = CheckLaunch(*program, arguments, donated, outputs);
  if (!why.ok()) {
    for (const BuffersRef& output : outputs) {
      output->FailAll(why);
      output->Settle();
    }
    if (status) Settle(*status, why);
    return;
  }
  Op op;
  parkway::Launch* launch = op.mutable_launch();
  launch->set_executable(program->EnsureLoaded(context, id_));
  launch->set_launch_id(launch_id);
  for (const ArrayRecord& argument : arguments) {
    Operand* operand = launch->add_arguments();
    if (argument.whole) {
      operand->set_array(argument.whole->buffers()->id());
      continue;
    }
    for (int32_t device : program->device_list()->ids()) {
      int shard = *argument.spec.sharding->devices()->Position(device);
      ShardRef* ref = operand->add_shards();
      ref->set_array(argument.shards[shard]->buffers()->id());
      ref->set_device(device);
    }
  }
  for (int index : donated) {
    if (!MayGiveAway(arguments[index])) continue;
    launch->add_donated(index);
    core_->engines->Donate(*arguments[index].whole->buffers());
  }
  for (const BuffersRef& output : outputs) launch->add_outputs(output->id());
  InFlight entry{
      .session = id_, .hosts = program->hosts(), .outputs = std::move(outputs), .context = context, .launch = true};
  entry.what = program->Describe();
  entry.credit = std::move(issued.credit);
  entry.running = std::move(issued.running);
  entry.fingerprint = program->compiled().fingerprint();
  entry.offered = program->offered();
  if (status) {
    entry.done = [status](const absl::Status& end) { Settle(*status, end); };
  }
  if (context == 0 && op.launch().donated().empty()) {
    for (ArrayRecord& argument : arguments) {
      argument.ForEachBuffers([&](const BuffersRef& buffers) { entry.inputs.push_back(buffers); });
    }
    entry.reload = [weak = std::weak_ptr<Program>(program), session = id_] {
      const std::shared_ptr<Program> loaded = weak.lock();
      if (loaded != nullptr) loaded->EnsureLoaded(0, session);
      return loaded != nullptr;
    };
  }
  if (context != 0) core_->contexts->LaunchStarted(context);
  core_->engines->Issue(std::move(op), std::move(entry));
}

}  // namespace parkway::runtime
