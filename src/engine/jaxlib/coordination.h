// The coordination service that XLA's distributed clients want, inside the engine's own process: what would end it ends
// the engine too, so that no other host's death can make XLA abort this one. One server on loopback for the life of the
// process (a client whose service goes away aborts), with a key store for each context, told apart by the client's
// incarnation number. Keys that the client writes are handed to a publisher; those of other hosts come in by Insert.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"

namespace parkway::engine {

// The keys of one context. Any thread.
class KeyStore {
 public:
  using Publish = absl::AnyInvocable<void(std::string key, std::string value)>;
  using Waiter = absl::AnyInvocable<void(absl::StatusOr<std::string>)>;

  explicit KeyStore(Publish publish) : publish_(std::move(publish)) {}

  // A key of another host, or one known beforehand. Overwrites.
  void Insert(const std::string& key, const std::string& value);
  // A key of our client's: published as well. Those known beforehand stay as they are.
  void InsertOwn(const std::string& key, const std::string& value);
  void Erase(const std::string& key);
  absl::StatusOr<std::string> Find(const std::string& key) const;
  // Calls back once, when the key is there, or with why it won't come. Returns a number to forget it by.
  uint64_t Wait(const std::string& key, Waiter waiter);
  // Drops a waiter without calling it; false when it was called.
  bool Forget(uint64_t waiter);
  // Nothing is published any more, and nobody waits.
  void Close(const absl::Status& why);
  // All values of keys that begin so.
  std::vector<std::string> ValuesUnder(const std::string& prefix) const;

 private:
  struct Waiting {
    std::string key;
    Waiter waiter;
  };
  mutable absl::Mutex mutex_;
  absl::Mutex publish_mutex_ ABSL_ACQUIRED_BEFORE(mutex_);
  Publish publish_ ABSL_GUARDED_BY(publish_mutex_);
  std::map<std::string, std::string> values_ ABSL_GUARDED_BY(mutex_);
  absl::Status closed_ ABSL_GUARDED_BY(mutex_);
  std::map<uint64_t, Waiting> waiting_ ABSL_GUARDED_BY(mutex_);
  uint64_t last_waiter_ ABSL_GUARDED_BY(mutex_) = 0;
};

class CoordinationServer {
 public:
  // The one of this process. FAILED_PRECONDITION when loopback has no port for it.
  static absl::StatusOr<CoordinationServer*> Get();

  const std::string& address() const { return address_; }
  // Runs `connect`, and gives `store` to the client that registers as task `rank` meanwhile. One at a time.
  absl::Status Connect(int rank, std::shared_ptr<KeyStore> store, const std::function<absl::Status()>& connect);

  // For the service: the store of a client, null when there is none.
  std::shared_ptr<KeyStore> StoreOf(uint64_t incarnation) const;
  bool Register(uint64_t incarnation, int rank);
  void Drop(uint64_t incarnation);
  // Clients that are connected.
  size_t clients() const;

 private:
  class Service;
  CoordinationServer() = default;
  absl::Status Start();

  std::string address_;
  absl::Mutex connect_mutex_;
  mutable absl::Mutex mutex_ ABSL_ACQUIRED_AFTER(connect_mutex_);
  absl::flat_hash_map<uint64_t, std::shared_ptr<KeyStore>> stores_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<KeyStore> expected_ ABSL_GUARDED_BY(mutex_);  // of the client that is about to register
  int expected_rank_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace parkway::engine
