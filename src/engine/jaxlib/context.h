// A context of the jaxlib engine: an XLA client over all its hosts, joined by Gloo. Opening and closing run on threads
// of their own.
//
// Include this in .cc files only: it brings Python.h.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/synchronization/mutex.h"
#include "engine/jaxlib/coordination.h"
#include "engine/jaxlib/executable.h"

namespace parkway::engine {

class JaxContext : public Context, public LaunchGate, public std::enable_shared_from_this<JaxContext> {
 public:
  // Makes the client; about 10 ms, whether or not the other members are there yet. `bind_host` is where they reach this
  // process. INVALID_ARGUMENT when the members don't fit `num_local` local devices or Gloo.
  static absl::StatusOr<std::shared_ptr<JaxContext>> Open(const Api& api, const std::string& bind_host, int num_local,
                                                          ContextSpec spec);
  // Ends what runs, waits for it and gives up the client. Blocks.
  void Close(absl::Status cause);

  void OnKey(const std::string& key, const std::string& value) override { keys_->Insert(key, value); }
  absl::StatusOr<std::shared_ptr<JaxExecutable>> Load(const LoadSpec& spec);

  absl::Status Enter(const DeviceSetRef& set) override;
  void Leave(const CompletionRef& completion) override;
  absl::Status Explain(const absl::Status& status) override;

 private:
  JaxContext(const Api& api, ContextSpec spec);
  absl::Status Connect(const std::string& bind_host, int num_local);
  void SeedTopology();
  void CutUntilIdle();

  const Api& api_;
  const uint64_t id_;
  const int rank_;
  const std::vector<ContextMember> members_;
  absl::flat_hash_map<int, int> ids_;  // lease device id -> the client's
  const std::shared_ptr<KeyStore> keys_;

  absl::Mutex mutex_;
  std::shared_ptr<Client> client_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::weak_ptr<JaxExecutable>> executables_ ABSL_GUARDED_BY(mutex_);
  absl::Status closed_ ABSL_GUARDED_BY(mutex_);  // the cause
  int launching_ ABSL_GUARDED_BY(mutex_) = 0;
  bool several_ ABSL_GUARDED_BY(mutex_) = false;                  // the kind of the last launch
  std::vector<CompletionRef> in_flight_ ABSL_GUARDED_BY(mutex_);  // all of that kind
};

}  // namespace parkway::engine
