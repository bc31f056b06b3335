// When the work behind an array ends, and with which error. jaxlib calls nobody back, so threads of a shared pool block
// in its tokens, each on the oldest launch of one lane. A lane is a device list of a client: XLA ends its launches in
// their order (measured, also where a later one has nothing to wait for), and those of other lanes have other threads.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"

namespace parkway::engine {

class HeldRef;

// Pending, then OK or an error, for ever. Any thread.
class Completion {
 public:
  using Callback = absl::AnyInvocable<void(const absl::Status&)>;

  // Calls back once, at once when it is done. Callbacks run in the order of their coming.
  void Then(Callback callback);
  // Ends it; later calls do nothing.
  void Finish(const absl::Status& status);
  bool done() const;
  // OK while pending.
  absl::Status status() const;
  // Blocks until it is done and the callbacks before this call have run.
  absl::Status Wait();

 private:
  mutable absl::Mutex mutex_;
  bool done_ ABSL_GUARDED_BY(mutex_) = false;
  bool running_ ABSL_GUARDED_BY(mutex_) = false;  // callbacks are being called
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
  std::vector<Callback> callbacks_ ABSL_GUARDED_BY(mutex_);
};
using CompletionRef = std::shared_ptr<Completion>;

// A completion that ends when all of `parts` have (null ones are done), with the first error among them in order. Null
// when all are done and OK.
CompletionRef JoinCompletions(const std::vector<CompletionRef>& parts);

// What a completion waits for: `token` blocks until the launch has ended on all local devices, or is null, and then the
// arrays are waited for; `arrays` is a list of its outputs.
struct Awaited {
  std::shared_ptr<HeldRef> token;
  std::shared_ptr<HeldRef> arrays;
  CompletionRef completion;
  std::function<absl::Status(const absl::Status&)> explain;  // what the completion says of an end; may be null
};
// Finishes the completion when its work has ended. `lane` only tells lanes apart. Any thread, with or without the GIL.
void AwaitInLane(const void* lane, Awaited awaited);

}  // namespace parkway::engine
