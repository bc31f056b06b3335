#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "engine/jaxlib/coordination.h"

namespace parkway::engine {

void KeyStore::Insert(const std::string& key, const std::string& value) {
  std::vector<Waiter> served;
  {
    absl::MutexLock lock(&mutex_);
    values_[key] = value;
    for (auto it = waiting_.begin(); it != waiting_.end();) {
      if (it->second.key == key) {
        served.push_back(std::move(it->second.waiter));
        it = waiting_.erase(it);
      } else {
        ++it;
      }
    }
  }
  for (Waiter& waiter : served) waiter(value);
}

void KeyStore::InsertOwn(const std::string& key, const std::string& value) {
  {
    absl::MutexLock lock(&mutex_);
    if (values_.contains(key)) return;
  }
  Insert(key, value);
  absl::MutexLock lock(&publish_mutex_);
  if (publish_) publish_(key, value);
}

void KeyStore::Erase(const std::string& key) {
  absl::MutexLock lock(&mutex_);
  values_.erase(key);
}

absl::StatusOr<std::string> KeyStore::Find(const std::string& key) const {
  absl::MutexLock lock(&mutex_);
  auto found = values_.find(key);
  // XLA's client knows by this code that the key isn't there yet.
  if (found == values_.end()) return absl::NotFoundError(absl::StrCat("no coordination key ", key));
  return found->second;
}

uint64_t KeyStore::Wait(const std::string& key, Waiter waiter) {
  absl::StatusOr<std::string> answer = absl::UnknownError("");
  {
    absl::MutexLock lock(&mutex_);
    auto found = values_.find(key);
    if (found == values_.end() && closed_.ok()) {
      waiting_.emplace(++last_waiter_, Waiting{key, std::move(waiter)});
      return last_waiter_;
    }
    answer = found != values_.end() ? absl::StatusOr<std::string>(found->second) : closed_;
  }
  waiter(std::move(answer));
  return 0;
}

bool KeyStore::Forget(uint64_t waiter) {
  absl::MutexLock lock(&mutex_);
  return waiting_.erase(waiter) == 1;
}

void KeyStore::Close(const absl::Status& why) {
  std::map<uint64_t, Waiting> dropped;
  {
    absl::MutexLock lock(&publish_mutex_);
    publish_ = nullptr;
  }
  {
    absl::MutexLock lock(&mutex_);
    if (closed_.ok()) closed_ = why;
    dropped.swap(waiting_);
  }
  for (auto& [number, waiting] : dropped) waiting.waiter(why);
}

std::vector<std::string> KeyStore::ValuesUnder(const std::string& prefix) const {
  absl::MutexLock lock(&mutex_);
  std::vector<std::string> values;
  for (auto it = values_.lower_bound(prefix); it != values_.end() && absl::StartsWith(it->first, prefix); ++it) {
    values.push_back(it->second);
  }
  return values;
}

}  // namespace parkway::engine
