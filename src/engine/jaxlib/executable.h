// A loaded executable of the jaxlib engine: checks and wraps arguments, launches, and wraps the results.
//
// Include this in .cc files only: it brings Python.h.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "engine/jaxlib/array.h"
#include "engine/jaxlib/client.h"

namespace parkway::engine {

// What executables of one context share: whether it still lives, and the rule that keeps two kinds of launches apart.
// The local client has none.
class LaunchGate {
 public:
  virtual ~LaunchGate() = default;
  // Before a launch on `set`; may block. An error when the context is closed; OK must be followed by Leave.
  virtual absl::Status Enter(const DeviceSetRef& set) = 0;
  // After it; null when it failed or has ended.
  virtual void Leave(const CompletionRef& completion) = 0;
  // The error that a failed launch is told: the cause, when the context was closed under it.
  virtual absl::Status Explain(const absl::Status& status) = 0;
};

class JaxExecutable : public Executable {
 public:
  // `ids` are the client's device ids in the executable's order. `gate` may be null.
  static absl::StatusOr<std::shared_ptr<JaxExecutable>> Load(const Api& api, const std::shared_ptr<Client>& client,
                                                             std::shared_ptr<LaunchGate> gate,
                                                             const std::vector<int>& ids, const LoadSpec& spec);
  // Gives up jaxlib's executable, which keeps its client alive: no launch may follow, and none may be under way.
  void Unload();
  // See Engine::Launch.
  absl::StatusOr<LaunchResult> Launch(absl::Span<const ArrayRef> arguments, absl::Span<const int> donated,
                                      absl::AnyInvocable<void(absl::Status)> done);

 private:
  struct Launched {
    PyRef outputs;  // list
    PyRef token;
    bool finished = false;
    absl::Status status;  // where finished
  };
  explicit JaxExecutable(const Api& api) : api_(api) {}
  absl::Status FillFrom(PyObject* loaded, const LoadSpec& spec);
  absl::Status CheckArguments(absl::Span<const ArrayRef> arguments);
  absl::Status CheckArgument(size_t index, const JaxArray& array);
  absl::Status WaitForArguments(absl::Span<const ArrayRef> arguments, absl::Span<const int> donated);
  absl::StatusOr<PyRef> WrapArguments(absl::Span<const ArrayRef> arguments, absl::Span<const int> donated);
  absl::StatusOr<PyRef> Copy(const JaxArray& array, PyObject* wrapped);
  absl::StatusOr<Launched> Execute(absl::Span<const ArrayRef> arguments, absl::Span<const int> donated);

  absl::StatusOr<LaunchResult> Start(absl::Span<const ArrayRef> arguments, absl::Span<const int> donated,
                                     absl::AnyInvocable<void(absl::Status)>& done, CompletionRef& pending);

  const Api& api_;
  std::string name_;
  std::shared_ptr<Client> client_;
  std::shared_ptr<LaunchGate> gate_;
  DeviceSetRef set_;
  HeldRef object_;
  HeldRef execute_;   // its method execute_sharded
  HeldRef handlers_;  // one for each output
  std::vector<Type> parameters_;
  std::vector<ArrayLayoutRef> checked_;  // of each parameter: a layout that was found right
  std::vector<bool> aliased_;            // of each parameter: the program may write its results there
  std::vector<ArrayLayoutRef> outputs_;
};

}  // namespace parkway::engine
