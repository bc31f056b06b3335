#include "engine/jaxlib/executable.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "engine/jaxlib/program.h"

namespace parkway::engine {
namespace {

bool Contains(absl::Span<const int> numbers, int number) {
  return std::find(numbers.begin(), numbers.end(), number) != numbers.end();
}

JaxArray& Of(const ArrayRef& array) { return static_cast<JaxArray&>(*array); }

}  // namespace

absl::StatusOr<std::shared_ptr<JaxExecutable>> JaxExecutable::Load(const Api& api,
                                                                   const std::shared_ptr<Client>& client,
                                                                   std::shared_ptr<LaunchGate> gate,
                                                                   const std::vector<int>& ids, const LoadSpec& spec) {
  PARKWAY_RETURN_IF_ERROR(RefuseHostCallbacks(spec.program.view()));
  std::shared_ptr<JaxExecutable> executable(new JaxExecutable(api));
  executable->name_ = spec.name;
  executable->client_ = client;
  executable->gate_ = std::move(gate);
  Gil gil;
  DropQueued();
  if (UsesLapack(spec.program.view())) PARKWAY_RETURN_IF_ERROR(InitializeLapack(api));
  PARKWAY_ASSIGN_OR_RETURN(executable->set_, client->Devices(ids));
  if (executable->set_->locals.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("program ", spec.name, " has no device on this host"));
  }
  PARKWAY_ASSIGN_OR_RETURN(PyRef device_ids, ListOf(ids));
  PyRef program(PyBytes_FromStringAndSize(reinterpret_cast<const char*>(spec.program.data),
                                          static_cast<Py_ssize_t>(spec.program.size)));
  PyRef options(
      PyBytes_FromStringAndSize(spec.compile_options.data(), static_cast<Py_ssize_t>(spec.compile_options.size())));
  if (!program || !options) return TakePythonError();
  PARKWAY_ASSIGN_OR_RETURN(PyRef loaded, CallPython(api.load, {client->object(), program.get(), options.get(),
                                                               executable->set_->list.get(), device_ids.get()}));
  PARKWAY_RETURN_IF_ERROR(executable->FillFrom(loaded.get(), spec));
  return executable;
}

absl::Status JaxExecutable::FillFrom(PyObject* loaded, const LoadSpec& spec) {
  object_ = HeldRef(PyRef::Borrow(PyTuple_GET_ITEM(loaded, 0)));
  execute_ = HeldRef(PyRef::Borrow(PyTuple_GET_ITEM(loaded, 1)));
  PARKWAY_ASSIGN_OR_RETURN(std::string module, PythonString(PyTuple_GET_ITEM(loaded, 2)));
  parameters_ = spec.parameters;
  checked_.resize(parameters_.size());
  aliased_ = AliasedParameters(module, parameters_.size());
  std::vector<PyObject*> handlers;
  std::vector<HeldRef> held;
  for (size_t i = 0; i < spec.outputs.size(); ++i) {
    auto layout = std::make_shared<ArrayLayout>();
    layout->devices = set_->locals;
    layout->types.assign(set_->locals.size(), spec.outputs[i]);
    PARKWAY_ASSIGN_OR_RETURN(
        layout->memory_kind,
        client_->MemoryKind(i < spec.output_memory_kinds.size() ? spec.output_memory_kinds[i] : ""));
    PARKWAY_ASSIGN_OR_RETURN(PyRef aval, Aval(api_, spec.outputs[i]));
    PARKWAY_ASSIGN_OR_RETURN(PyRef handler,
                             CallPython(api_.result_handler, {aval.get(), set_->shardings[layout->memory_kind].get()}));
    handlers.push_back(handler.get());
    held.push_back(HeldRef(std::move(handler)));
    outputs_.push_back(std::move(layout));
  }
  PARKWAY_ASSIGN_OR_RETURN(PyRef list, ListOf(handlers));
  handlers_ = HeldRef(std::move(list));
  return absl::OkStatus();
}

absl::Status JaxExecutable::CheckArguments(absl::Span<const ArrayRef> arguments) {
  if (arguments.size() != parameters_.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("program ", name_, " takes ", parameters_.size(), " arguments, not ", arguments.size()));
  }
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i] == nullptr)
      return absl::InvalidArgumentError(absl::StrCat("argument ", i, " of ", name_, " is missing"));
    JaxArray& array = Of(arguments[i]);
    if (absl::Status status = array.status(); !status.ok()) {
      return absl::IsFailedPrecondition(status) ? Annotate(status, absl::StrCat("argument ", i, " of ", name_))
                                                : status;
    }
    if (array.layout() != checked_[i]) {
      PARKWAY_RETURN_IF_ERROR(CheckArgument(i, array));
      checked_[i] = array.layout();
    }
  }
  return absl::OkStatus();
}

absl::Status JaxExecutable::CheckArgument(size_t index, const JaxArray& array) {
  for (int device : set_->locals) {
    if (!array.Has(device)) {
      return absl::InvalidArgumentError(
          absl::StrCat("argument ", index, " of ", name_, " has no shard on local device ", device));
    }
    if (const std::optional<std::string> mismatch = Mismatch(array.type(device), parameters_[index])) {
      return absl::InvalidArgumentError(
          absl::StrCat("argument ", index, " of ", name_, " on local device ", device, " is ", *mismatch));
    }
  }
  return absl::OkStatus();
}

// Bytes of another client are adopted as they lie, so they must be there; and a view that was asked for before a
// donation shows what was there before.
absl::Status JaxExecutable::WaitForArguments(absl::Span<const ArrayRef> arguments, absl::Span<const int> donated) {
  auto wait = [](const JaxArray& array) {
    for (const CompletionRef& completion : array.completions()) {
      if (completion != nullptr) PARKWAY_RETURN_IF_ERROR(completion->Wait());
    }
    return absl::OkStatus();
  };
  for (int index : donated) {
    if (Of(arguments[index]).promised_views() > 0) PARKWAY_RETURN_IF_ERROR(wait(Of(arguments[index])));
  }
  for (const ArrayRef& argument : arguments) {
    if (Of(argument).home() != set_->client) PARKWAY_RETURN_IF_ERROR(wait(Of(argument)));
  }
  return absl::OkStatus();
}

absl::StatusOr<PyRef> JaxExecutable::WrapArguments(absl::Span<const ArrayRef> arguments,
                                                   absl::Span<const int> donated) {
  PyRef list(PyList_New(static_cast<Py_ssize_t>(arguments.size())));
  if (!list) return TakePythonError();
  for (size_t i = 0; i < arguments.size(); ++i) {
    JaxArray& array = Of(arguments[i]);
    PARKWAY_ASSIGN_OR_RETURN(PyObject * wrapped, array.On(set_));
    // The program writes where it wants: what must survive goes in as a copy.
    if (aliased_[i] && (!Contains(donated, static_cast<int>(i)) || array.SharesShards())) {
      PARKWAY_ASSIGN_OR_RETURN(PyRef copy, Copy(array, wrapped));
      PyList_SET_ITEM(list.get(), i, copy.release());
    } else {
      PyList_SET_ITEM(list.get(), i, Py_NewRef(wrapped));
    }
  }
  return list;
}

// Shard by shard: XLA copies no array of which a part lies on another host.
absl::StatusOr<PyRef> JaxExecutable::Copy(const JaxArray& array, PyObject* wrapped) {
  PyRef shards(set_->single ? PyRef() : PyRef(PyObject_GetAttr(wrapped, api_.name_arrays)));
  if (!set_->single && !shards) return TakePythonError();
  PyRef sources(PyList_New(0));
  PyRef lists(PyList_New(0));
  PyRef shardings(PyList_New(0));
  PyRef semantics(PyList_New(0));
  for (size_t i = 0; i < set_->locals.size(); ++i) {
    PARKWAY_ASSIGN_OR_RETURN(DeviceSetRef one, client_->LocalDevices({set_->locals[i]}));
    PyObject* source = set_->single ? wrapped : PyList_GetItem(shards.get(), static_cast<Py_ssize_t>(i));
    if (source == nullptr || PyList_Append(sources.get(), source) != 0 ||
        PyList_Append(lists.get(), one->list.get()) != 0 ||
        PyList_Append(shardings.get(), one->shardings[array.layout()->memory_kind].get()) != 0 ||
        PyList_Append(semantics.get(), api_.always_copy) != 0) {
      return TakePythonError();
    }
  }
  PARKWAY_ASSIGN_OR_RETURN(
      PyRef copies, CallPython(api_.copy_arrays, {sources.get(), lists.get(), shardings.get(), semantics.get()}));
  if (set_->single) return PyRef::Borrow(PyList_GET_ITEM(copies.get(), 0));
  return OverDevices(api_, array.type(set_->locals[0]), *set_, array.layout()->memory_kind, copies.get());
}

absl::StatusOr<JaxExecutable::Launched> JaxExecutable::Execute(absl::Span<const ArrayRef> arguments,
                                                               absl::Span<const int> donated) {
  PARKWAY_ASSIGN_OR_RETURN(PyRef wrapped, WrapArguments(arguments, donated));
  PyObject* call[] = {wrapped.get(), Py_True};
  PyRef results(PyObject_Vectorcall(execute_.get(), call, 1, api_.keywords_tokens));
  if (!results) return TakePythonError();
  Launched launched;
  launched.outputs = PyRef(PyObject_CallMethodOneArg(results.get(), api_.name_consume_with_handlers, handlers_.get()));
  launched.token = PyRef(PyObject_CallMethodNoArgs(results.get(), api_.name_consume_token));
  if (!launched.outputs || !launched.token) return TakePythonError();
  for (int index : donated) Of(arguments[index]).Donate();
  // A tiny program has run inside the call: all of its outputs come with the first.
  if (PyList_GET_SIZE(launched.outputs.get()) > 0) {
    PyRef ready(PyObject_CallMethodNoArgs(PyList_GET_ITEM(launched.outputs.get(), 0), api_.name_is_ready));
    launched.finished = !ready || ready.get() == Py_True;
    if (!ready) PyErr_Clear();
  }
  if (launched.finished) {
    PyRef ended(PyObject_CallMethodNoArgs(launched.token.get(), api_.name_block_until_ready));
    if (!ended) launched.status = TakePythonError();
  }
  return launched;
}

absl::StatusOr<LaunchResult> JaxExecutable::Launch(absl::Span<const ArrayRef> arguments, absl::Span<const int> donated,
                                                   absl::AnyInvocable<void(absl::Status)> done) {
  PARKWAY_RETURN_IF_ERROR(CheckArguments(arguments));
  for (int index : donated) {
    if (index < 0 || static_cast<size_t>(index) >= arguments.size()) {
      return absl::InvalidArgumentError(
          absl::StrCat("donated argument ", index, " of ", name_, ", which takes ", arguments.size()));
    }
  }
  PARKWAY_RETURN_IF_ERROR(WaitForArguments(arguments, donated));
  if (gate_ != nullptr) PARKWAY_RETURN_IF_ERROR(gate_->Enter(set_));
  CompletionRef pending;
  absl::StatusOr<LaunchResult> result = Start(arguments, donated, done, pending);
  if (gate_ != nullptr) gate_->Leave(pending);
  if (!result.ok()) return gate_ != nullptr ? gate_->Explain(result.status()) : result.status();
  if (done) done(absl::OkStatus());
  return result;
}

// Leaves `done` to be called only where the launch has ended well; else `pending` calls it.
absl::StatusOr<LaunchResult> JaxExecutable::Start(absl::Span<const ArrayRef> arguments, absl::Span<const int> donated,
                                                  absl::AnyInvocable<void(absl::Status)>& done,
                                                  CompletionRef& pending) {
  LaunchResult result;
  absl::Status failure;
  {
    Gil gil;
    DropQueued();
    PARKWAY_ASSIGN_OR_RETURN(Launched launched, Execute(arguments, donated));
    failure = launched.status;
    if (!launched.finished || !failure.ok()) pending = std::make_shared<Completion>();
    for (size_t i = 0; i < outputs_.size(); ++i) {
      HeldRef output(PyRef::Borrow(PyList_GET_ITEM(launched.outputs.get(), i)));
      result.outputs.push_back(std::make_shared<JaxArray>(api_, outputs_[i], set_, std::move(output), pending));
    }
    if (pending != nullptr) {
      pending->Then([done = std::move(done)](const absl::Status& end) mutable { done(end); });
      done = nullptr;
    }
    if (!launched.finished) {
      Awaited awaited{std::make_shared<HeldRef>(std::move(launched.token)),
                      std::make_shared<HeldRef>(std::move(launched.outputs)), pending, nullptr};
      if (gate_ != nullptr) awaited.explain = [gate = gate_](const absl::Status& end) { return gate->Explain(end); };
      AwaitInLane(set_.get(), std::move(awaited));
      return result;
    }
  }
  if (pending != nullptr) pending->Finish(gate_ != nullptr ? gate_->Explain(failure) : failure);
  return result;
}

void JaxExecutable::Unload() {
  object_ = HeldRef();
  execute_ = HeldRef();
  handlers_ = HeldRef();
  client_ = nullptr;
}

}  // namespace parkway::engine
