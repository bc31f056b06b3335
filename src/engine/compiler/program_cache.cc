#include "engine/compiler/program_cache.h"

#include <utility>

#include "absl/hash/hash.h"
#include "proto/parkway/compiler.pb.h"

namespace parkway::compiler {

size_t HashJob::operator()(const JobKey& key) const {
  return absl::HashOf(key->platform(), key->num_devices(), key->compile_options(), key->program());
}

bool SameJob::operator()(const JobKey& a, const JobKey& b) const {
  return a == b || (a->num_devices() == b->num_devices() && a->platform() == b->platform() &&
                    a->compile_options() == b->compile_options() && a->program() == b->program());
}

ProgramRef ProgramCache::Find(const JobKey& key) {
  auto found = index_.find(key);
  if (found == index_.end()) return nullptr;
  entries_.splice(entries_.begin(), entries_, found->second);
  return found->second->program;
}

void ProgramCache::Insert(JobKey key, ProgramRef program) {
  const auto bytes = static_cast<int64_t>(key->ByteSizeLong() + program->ByteSizeLong());
  if (bytes > limit_bytes_ || index_.contains(key)) return;
  entries_.push_front({key, std::move(program), bytes});
  index_.emplace(std::move(key), entries_.begin());
  bytes_ += bytes;
  while (bytes_ > limit_bytes_) {
    const Entry& oldest = entries_.back();
    bytes_ -= oldest.bytes;
    index_.erase(oldest.key);
    entries_.pop_back();
  }
}

}  // namespace parkway::compiler
