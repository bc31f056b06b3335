#include "engine/compiler/pool.h"

#include <glog/logging.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <list>
#include <mutex>
#include <thread>
#include <unordered_map>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "base/status_wire.h"
#include "engine/compiler/options.h"
#include "engine/compiler/process.h"
#include "proto/parkway/compiler.pb.h"

namespace parkway::compiler {
namespace {

constexpr auto kWatchPeriod = std::chrono::milliseconds(50);

struct Waiter {
  CompilerPool::JobId id;
  CompilerPool::Callback done;
};

// One compile and everybody who waits for it.
struct Compilation {
  JobKey key;
  uint64_t session = 0;  // of the first who asked
  std::vector<Waiter> waiters;
  bool running = false;
};
using CompilationRef = std::shared_ptr<Compilation>;

// A thread of the pool and its process.
struct Worker {
  std::thread thread;
  std::shared_ptr<CompilerProcess> process;  // null: not started yet, or ended
  CompilationRef compilation;                // what it works on
  std::string program;                       // its name, once known
  absl::Time since;
  absl::Status killed;  // why the pool killed the process; OK: it did not
  bool extra = false;   // goes when nothing waits
  bool ended = false;
};

std::string Words(const std::string& program, const JobKey& key) {
  return program.empty() ? absl::StrCat("a program of ", key->program().size(), " bytes")
                         : absl::StrCat("'", program, "'");
}

}  // namespace

// One lock guards all of it; nobody holds it while a process works or a callback runs. Worker threads take
// compilations, the watching thread looks after limits and runs the callbacks.
class CompilerPool::Impl {
 public:
  explicit Impl(Options options) : options_(std::move(options)), cache_(options_.cache_bytes) {
    options_.processes = std::max(options_.processes, 1);
    options_.max_processes = std::max(options_.max_processes, options_.processes);
    std::lock_guard lock(mutex_);
    for (int i = 0; i < options_.processes; ++i) AddWorker(/*extra=*/false);
    watcher_ = std::thread([this] { Watch(); });
  }

  ~Impl() {
    {
      std::lock_guard lock(mutex_);
      stopping_ = true;
      for (const CompilationRef& compilation : queue_) Finish(*compilation, Stopping());
      queue_.clear();
      for (Worker& worker : workers_) {
        if (worker.compilation != nullptr) Finish(*worker.compilation, Stopping());
        Kill(worker, Stopping());
      }
    }
    work_.notify_all();
    for (Worker& worker : workers_) worker.thread.join();
    answer_.notify_all();
    watcher_.join();
  }

  JobId Compile(uint64_t session, CompileJob job, Callback done) {
    job.set_job(0);
    absl::StatusOr<std::string> options = NormaliseOptions(job.compile_options(), job.num_devices());
    std::lock_guard lock(mutex_);
    const JobId id = ++last_id_;
    if (!options.ok()) {
      Answer(std::move(done), options.status());
      return id;
    }
    job.set_compile_options(*std::move(options));
    auto key = std::make_shared<const CompileJob>(std::move(job));
    if (ProgramRef program = cache_.Find(key)) {
      ++stats_.cached;
      Answer(std::move(done), std::move(program));
    } else if (auto found = compilations_.find(key); found != compilations_.end()) {
      ++stats_.shared;
      found->second->waiters.push_back({id, std::move(done)});
      jobs_.emplace(id, found->second);
    } else if (absl::Status room = Room(*key); !room.ok()) {
      Answer(std::move(done), room);
    } else {
      Enqueue(session, id, std::move(key), std::move(done));
    }
    return id;
  }

  void Cancel(JobId id) {
    std::lock_guard lock(mutex_);
    auto found = jobs_.find(id);
    if (found == jobs_.end()) return;
    const CompilationRef compilation = found->second;
    jobs_.erase(found);
    auto waiter = std::find_if(compilation->waiters.begin(), compilation->waiters.end(),
                               [&](const Waiter& candidate) { return candidate.id == id; });
    Answer(std::move(waiter->done), absl::CancelledError("the compile was cancelled"));
    compilation->waiters.erase(waiter);
    if (compilation->waiters.empty()) Abandon(compilation);
  }

  Stats stats() const {
    std::lock_guard lock(mutex_);
    Stats stats = stats_;
    stats.waiting = static_cast<int>(queue_.size());
    for (const Worker& worker : workers_) {
      stats.processes += worker.process != nullptr ? 1 : 0;
      stats.running += worker.compilation != nullptr ? 1 : 0;
    }
    return stats;
  }

 private:
  static absl::Status Stopping() { return absl::CancelledError("the proxy is stopping"); }

  // ---- all below: with the lock held, but for WorkerLoop, RunOne and Watch ----

  void AddWorker(bool extra) {
    Worker& worker = workers_.emplace_back();
    worker.extra = extra;
    worker.thread = std::thread([this, &worker] { WorkerLoop(worker); });
  }

  absl::Status Room(const CompileJob& job) const {
    if (static_cast<int>(queue_.size()) >= options_.queue) {
      return absl::ResourceExhaustedError(
          absl::StrCat(queue_.size(), " programs wait for a compiler already; try again later"));
    }
    const auto bytes = static_cast<int64_t>(job.program().size());
    if (queue_bytes_ + bytes > options_.queue_bytes) {
      return absl::ResourceExhaustedError(absl::StrCat("a program of ", bytes, " bytes finds ", queue_bytes_,
                                                       " bytes of programs waiting for a compiler, of at most ",
                                                       options_.queue_bytes, "; try again later"));
    }
    return absl::OkStatus();
  }

  void Enqueue(uint64_t session, JobId id, JobKey key, Callback done) {
    auto compilation = std::make_shared<Compilation>();
    compilation->key = key;
    compilation->session = session;
    compilation->waiters.push_back({id, std::move(done)});
    jobs_.emplace(id, compilation);
    queue_bytes_ += static_cast<int64_t>(key->program().size());
    compilations_.emplace(std::move(key), compilation);
    queue_.push_back(std::move(compilation));
    work_.notify_one();
  }

  // The first compilation of the session that has the fewest running, if it may have another; null: none may.
  CompilationRef TakeNext() {
    auto best = queue_.end();
    auto fewest = static_cast<int64_t>(std::max(options_.max_processes - 1, 1));
    for (auto next = queue_.begin(); next != queue_.end() && fewest > 0; ++next) {
      const auto running = std::count_if(workers_.begin(), workers_.end(), [&](const Worker& worker) {
        return worker.compilation != nullptr && worker.compilation->session == (*next)->session;
      });
      if (running >= fewest) continue;
      best = next;
      fewest = running;
    }
    if (best == queue_.end()) return nullptr;
    CompilationRef taken = *best;
    queue_.erase(best);
    queue_bytes_ -= static_cast<int64_t>(taken->key->program().size());
    taken->running = true;
    return taken;
  }

  void Answer(Callback done, absl::StatusOr<ProgramRef> result) {
    answers_.emplace_back(std::move(done), std::move(result));
    answer_.notify_one();
  }

  // Answers all waiters and forgets the compilation.
  void Finish(Compilation& compilation, const absl::StatusOr<ProgramRef>& result) {
    for (Waiter& waiter : compilation.waiters) {
      jobs_.erase(waiter.id);
      Answer(std::move(waiter.done), result);
    }
    compilation.waiters.clear();
    Forget(compilation);
  }

  void Forget(const Compilation& compilation) {
    auto found = compilations_.find(compilation.key);
    if (found != compilations_.end() && found->second.get() == &compilation) compilations_.erase(found);
  }

  // Nobody wants it any more.
  void Abandon(const CompilationRef& compilation) {
    Forget(*compilation);
    if (!compilation->running) {
      queue_bytes_ -= static_cast<int64_t>(compilation->key->program().size());
      queue_.erase(std::find(queue_.begin(), queue_.end(), compilation));
      return;
    }
    for (Worker& worker : workers_) {
      if (worker.compilation == compilation) Kill(worker, absl::CancelledError("the compile was cancelled"));
    }
  }

  void Kill(Worker& worker, absl::Status why) {
    if (worker.process == nullptr || !worker.killed.ok()) return;
    worker.killed = std::move(why);
    ++stats_.killed;
    worker.process->Kill();
  }

  // ---- worker threads ----

  void WorkerLoop(Worker& worker) {
    std::unique_lock lock(mutex_);
    absl::Status started = StartProcess(worker, lock);
    while (true) {
      CompilationRef compilation;
      work_.wait(lock, [&] { return stopping_ || (compilation = TakeNext()) != nullptr || worker.extra; });
      if (stopping_ || compilation == nullptr) break;
      worker.compilation = compilation;
      worker.program.clear();
      worker.since = absl::Now();
      worker.killed = absl::OkStatus();
      if (worker.process == nullptr || !worker.process->Alive()) started = StartProcess(worker, lock);
      absl::StatusOr<ProgramRef> result = Stopping();  // or nobody waits any more
      if (!started.ok()) {
        result = started;
      } else if (!stopping_ && !compilation->waiters.empty()) {
        result = RunOne(worker, lock);
      }
      if (result.ok()) cache_.Insert(compilation->key, *result);
      worker.compilation = nullptr;
      Finish(*compilation, result);
      if (worker.process == nullptr && !worker.extra && !stopping_) started = StartProcess(worker, lock);
      work_.notify_all();  // its session may have another process now
    }
    std::shared_ptr<CompilerProcess> process = std::move(worker.process);
    worker.ended = true;
    lock.unlock();
  }

  absl::Status StartProcess(Worker& worker, std::unique_lock<std::mutex>& lock) {
    std::shared_ptr<CompilerProcess> old = std::move(worker.process);
    lock.unlock();
    old.reset();
    absl::StatusOr<std::shared_ptr<CompilerProcess>> fresh = CompilerProcess::Start(options_.argv, options_.env);
    lock.lock();
    if (!fresh.ok()) {
      LOG(ERROR) << "no compiler process: " << fresh.status();
      return absl::UnavailableError(absl::StrCat("no compiler process can be started: ", fresh.status().message()));
    }
    worker.process = *std::move(fresh);
    return absl::OkStatus();
  }

  // Gives the worker's compilation to its process. A process that is of no use afterwards is dropped.
  absl::StatusOr<ProgramRef> RunOne(Worker& worker, std::unique_lock<std::mutex>& lock) {
    const JobKey key = worker.compilation->key;
    const std::shared_ptr<CompilerProcess> process = worker.process;
    lock.unlock();
    absl::StatusOr<CompileResult> result = process->Run(*key, [&](const std::string& name) {
      std::lock_guard guard(mutex_);
      worker.program = name;
    });
    const bool ended = absl::IsUnavailable(result.status());
    const std::string end = ended ? process->EndInWords() : "";
    lock.lock();
    const bool too_large = absl::IsResourceExhausted(result.status());  // the job was not sent
    if (!worker.killed.ok() || (!result.ok() && !too_large) || process->MemoryBytes() > options_.memory_bytes / 2) {
      worker.process = nullptr;
    }
    if (result.ok()) {
      ++stats_.compiled;
      PARKWAY_RETURN_IF_ERROR(FromProto(result->status()));
      return std::make_shared<const CompiledProgram>(std::move(*result->mutable_program()));
    }
    if (!worker.killed.ok()) return worker.killed;
    if (too_large) return Annotate(result.status(), absl::StrCat("compile of ", Words("", key)));
    ++stats_.crashed;
    LOG(ERROR) << "the compiler of " << Words(worker.program, key) << " " << (ended ? end : result.status().ToString());
    return absl::FailedPreconditionError(absl::StrCat(
        "compile of ", Words(worker.program, key), " crashed its compiler, which ", ended ? end : "sent nonsense",
        "; a fault of the program or of XLA: nothing else was lost, but the same program will do it again"));
  }

  // ---- the watching thread ----

  void Watch() {
    std::unique_lock lock(mutex_);
    while (true) {
      answer_.wait_for(lock, kWatchPeriod, [&] { return !answers_.empty() || AllEnded(); });
      while (!answers_.empty()) {
        auto [done, result] = std::move(answers_.front());
        answers_.pop_front();
        lock.unlock();
        done(std::move(result));
        done = nullptr;
        lock.lock();
      }
      if (AllEnded() && answers_.empty()) return;
      if (stopping_) continue;
      CheckLimits();
      Grow();
      RemoveEnded(lock);
    }
  }

  bool AllEnded() const {
    return stopping_ &&
           std::all_of(workers_.begin(), workers_.end(), [](const Worker& worker) { return worker.ended; });
  }

  void CheckLimits() {
    for (Worker& worker : workers_) {
      if (worker.compilation == nullptr || worker.process == nullptr || !worker.killed.ok()) continue;
      const std::string what = absl::StrCat("compile of ", Words(worker.program, worker.compilation->key));
      if (absl::Now() - worker.since > options_.timeout) {
        Kill(worker, absl::ResourceExhaustedError(absl::StrCat(what, " took longer than ",
                                                               absl::ToDoubleSeconds(options_.timeout),
                                                               " s; raise --compile_timeout_seconds")));
      } else if (worker.process->MemoryBytes() > options_.memory_bytes) {
        Kill(worker, absl::ResourceExhaustedError(absl::StrCat(what, " took more than ", options_.memory_bytes >> 20,
                                                               " MiB of memory; raise --compile_memory_bytes")));
      }
    }
  }

  // One more process when something waits while all are busy and one of them has been for long.
  void Grow() {
    if (queue_.empty() || static_cast<int>(workers_.size()) >= options_.max_processes) return;
    bool slow = false;
    for (const Worker& worker : workers_) {
      if (worker.compilation == nullptr) return;
      slow |= absl::Now() - worker.since > options_.slow;
    }
    if (slow) AddWorker(/*extra=*/true);
  }

  void RemoveEnded(std::unique_lock<std::mutex>& lock) {
    for (auto worker = workers_.begin(); worker != workers_.end() && !stopping_;) {
      if (!worker->ended) {
        ++worker;
        continue;
      }
      std::thread thread = std::move(worker->thread);
      worker = workers_.erase(worker);
      lock.unlock();
      thread.join();
      lock.lock();
      worker = workers_.begin();
    }
  }

  Options options_;
  mutable std::mutex mutex_;
  std::condition_variable work_;    // for workers
  std::condition_variable answer_;  // for the watcher
  bool stopping_ = false;
  JobId last_id_ = 0;
  std::deque<CompilationRef> queue_;
  int64_t queue_bytes_ = 0;
  std::unordered_map<JobKey, CompilationRef, HashJob, SameJob> compilations_;  // waiting or running, and wanted
  absl::flat_hash_map<JobId, CompilationRef> jobs_;
  std::deque<std::pair<Callback, absl::StatusOr<ProgramRef>>> answers_;
  ProgramCache cache_;
  Stats stats_;
  std::list<Worker> workers_;
  std::thread watcher_;
};

CompilerPool::CompilerPool(Options options) : impl_(std::make_unique<Impl>(std::move(options))) {}
CompilerPool::~CompilerPool() = default;

CompilerPool::JobId CompilerPool::Compile(uint64_t session, CompileJob job, Callback done) {
  return impl_->Compile(session, std::move(job), std::move(done));
}
void CompilerPool::Cancel(JobId job) { impl_->Cancel(job); }
CompilerPool::Stats CompilerPool::stats() const { return impl_->stats(); }

}  // namespace parkway::compiler
