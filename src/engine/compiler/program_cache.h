// Compiled programs kept for a repeat, the least recently used going first when they are too many bytes. Keys are
// compared whole, not by hash: no client can make another one get its program. One thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <unordered_map>

namespace parkway {
class CompileJob;
class CompiledProgram;
}  // namespace parkway

namespace parkway::compiler {

using ProgramRef = std::shared_ptr<const CompiledProgram>;
// What a compile depends on: a job whose options are normalised and whose number is 0.
using JobKey = std::shared_ptr<const CompileJob>;

struct HashJob {
  size_t operator()(const JobKey& key) const;
};
struct SameJob {
  bool operator()(const JobKey& a, const JobKey& b) const;
};

class ProgramCache {
 public:
  explicit ProgramCache(int64_t limit_bytes) : limit_bytes_(limit_bytes) {}

  ProgramRef Find(const JobKey& key);  // null: not here
  void Insert(JobKey key, ProgramRef program);
  int64_t bytes() const { return bytes_; }

 private:
  struct Entry {
    JobKey key;
    ProgramRef program;
    int64_t bytes;
  };

  const int64_t limit_bytes_;
  int64_t bytes_ = 0;
  std::list<Entry> entries_;  // the most recently used first
  std::unordered_map<JobKey, std::list<Entry>::iterator, HashJob, SameJob> index_;
};

}  // namespace parkway::compiler
