// The pool against a stand-in for compilers (fake_compiler_main.cc).
#include "engine/compiler/pool.h"

#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <fstream>
#include <future>
#include <random>
#include <thread>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "proto/ifrt/compile_options.pb.h"
#include "proto/parkway/compiler.pb.h"

namespace parkway::compiler {
namespace {

using ::testing::HasSubstr;
using Result = absl::StatusOr<ProgramRef>;

constexpr absl::Duration kLong = absl::Seconds(30);

CompileJob Job(const std::string& program, int first_device = 0) {
  CompileJob job;
  job.set_platform("cpu");
  job.set_program(program);
  job.set_num_devices(1);
  xla::CompileOptionsProto options;
  auto& build = *options.mutable_executable_build_options();
  build.set_num_partitions(1);
  build.set_num_replicas(1);
  build.mutable_device_assignment()->add_computation_devices()->add_replica_device_ids(first_device);
  job.set_compile_options(options.SerializeAsString());
  return job;
}

CompilerPool::Options PoolOptions(int processes, int max_processes) {
  CompilerPool::Options options;
  options.argv = {FAKE_COMPILER_MAIN};
  options.processes = processes;
  options.max_processes = max_processes;
  return options;
}

// One answer to come.
class Asked {
 public:
  Asked(CompilerPool& pool, CompileJob job, uint64_t session = 1) : result_(promise_->get_future()) {
    id_ = pool.Compile(session, std::move(job), [promise = promise_](Result result) { promise->set_value(result); });
  }
  CompilerPool::JobId id() const { return id_; }
  Result Get() {
    if (result_.wait_for(absl::ToChronoSeconds(kLong)) != std::future_status::ready) {
      return absl::DeadlineExceededError("no answer");
    }
    return result_.get();
  }
  bool Pending() { return result_.wait_for(std::chrono::seconds(0)) != std::future_status::ready; }

 private:
  std::shared_ptr<std::promise<Result>> promise_ = std::make_shared<std::promise<Result>>();
  std::future<Result> result_;
  CompilerPool::JobId id_;
};

// Waits until the pool says what `reached` wants.
template <typename Reached>
bool Eventually(CompilerPool& pool, Reached reached) {
  for (absl::Time end = absl::Now() + kLong; absl::Now() < end; absl::SleepFor(absl::Milliseconds(2))) {
    if (reached(pool.stats())) return true;
  }
  return false;
}

// A file that programs "wait" for.
class Gate {
 public:
  Gate() : path_(absl::StrCat(::testing::TempDir(), "/gate.", getpid())) { std::remove(path_.c_str()); }
  ~Gate() { std::remove(path_.c_str()); }
  std::string program() const { return absl::StrCat("wait ", path_); }
  void Open() { std::ofstream(path_) << "open"; }

 private:
  std::string path_;
};

TEST(CompilerPool, CompilesAndRemembers) {
  CompilerPool pool(PoolOptions(1, 1));
  Result first = Asked(pool, Job("answer one")).Get();
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_EQ((*first)->name(), "jit_answer");
  EXPECT_EQ((*first)->executable(), "one");
  // Other devices of the same client change nothing.
  Result again = Asked(pool, Job("answer one", 5)).Get();
  ASSERT_TRUE(again.ok());
  EXPECT_EQ(first->get(), again->get());
  EXPECT_EQ(pool.stats().compiled, 1);
  EXPECT_EQ(pool.stats().cached, 1);
  Result other = Asked(pool, Job("answer two")).Get();
  EXPECT_EQ((*other)->executable(), "two");
  EXPECT_EQ((*other)->text(), (*first)->text()) << "an idle process is used again";
}

TEST(CompilerPool, TheLeastUsedResultGoesFirst) {
  CompilerPool::Options options = PoolOptions(1, 1);
  options.cache_bytes = 5000;
  CompilerPool pool(options);
  auto job = [](char c) { return Job(absl::StrCat("answer ", std::string(1000, c))); };
  ASSERT_TRUE(Asked(pool, job('a')).Get().ok());
  ASSERT_TRUE(Asked(pool, job('b')).Get().ok());
  ASSERT_TRUE(Asked(pool, job('a')).Get().ok());  // cached
  ASSERT_TRUE(Asked(pool, job('c')).Get().ok());  // b goes
  EXPECT_EQ(pool.stats().compiled, 3);
  ASSERT_TRUE(Asked(pool, job('a')).Get().ok());
  EXPECT_EQ(pool.stats().compiled, 3);
  ASSERT_TRUE(Asked(pool, job('b')).Get().ok());
  EXPECT_EQ(pool.stats().compiled, 4);
}

TEST(CompilerPool, ErrorsArePassedOnAndNotKept) {
  CompilerPool pool(PoolOptions(1, 1));
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(Asked(pool, Job("fail no good")).Get().status(), absl::InvalidArgumentError("no good"));
  }
  EXPECT_EQ(pool.stats().compiled, 2);
  CompileJob job = Job("answer");
  job.set_num_devices(3);
  EXPECT_EQ(Asked(pool, job).Get().status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(pool.stats().compiled, 2);
}

TEST(CompilerPool, EqualProgramsAreCompiledOnce) {
  Gate gate;
  CompilerPool pool(PoolOptions(2, 2));
  std::vector<Asked> asked;
  for (int i = 0; i < 5; ++i) asked.emplace_back(pool, Job(gate.program(), i), /*session=*/i);
  gate.Open();
  ProgramRef first;
  for (Asked& one : asked) {
    Result result = one.Get();
    ASSERT_TRUE(result.ok()) << result.status();
    if (first == nullptr) first = *result;
    EXPECT_EQ(first, *result);
  }
  EXPECT_EQ(pool.stats().compiled, 1);
  EXPECT_EQ(pool.stats().shared, 4);
}

TEST(CompilerPool, ACrashIsItsProgramsErrorAlone) {
  Gate gate;
  CompilerPool pool(PoolOptions(2, 2));
  Asked other(pool, Job(gate.program()), 2);
  absl::Status crash = Asked(pool, Job("crash")).Get().status();
  EXPECT_EQ(crash.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(crash.message()), HasSubstr("'jit_crash'"));
  EXPECT_THAT(std::string(crash.message()), HasSubstr("signal 6"));
  gate.Open();
  EXPECT_TRUE(other.Get().ok());
  absl::Status exit = Asked(pool, Job("exit")).Get().status();
  EXPECT_THAT(std::string(exit.message()), HasSubstr("exited with 3"));
  EXPECT_EQ(Asked(pool, Job("nonsense")).Get().status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(Asked(pool, Job("answer")).Get().ok());
  EXPECT_EQ(pool.stats().crashed, 3);
}

TEST(CompilerPool, EndlessCompilesAreStopped) {
  CompilerPool::Options options = PoolOptions(1, 1);
  options.timeout = absl::Milliseconds(200);
  CompilerPool pool(options);
  absl::Status status = Asked(pool, Job("sleep 1000")).Get().status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()), HasSubstr("compile of 'jit_sleep' took longer than 0.2 s"));
  EXPECT_EQ(pool.stats().killed, 1);
}

TEST(CompilerPool, GreedyCompilesAreStopped) {
  CompilerPool::Options options = PoolOptions(1, 1);
  options.memory_bytes = int64_t{128} << 20;
  CompilerPool pool(options);
  absl::Status status = Asked(pool, Job("eat 300")).Get().status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()), HasSubstr("more than 128 MiB"));
  EXPECT_TRUE(Asked(pool, Job("answer")).Get().ok());
}

TEST(CompilerPool, CancellingKillsTheProcessOfOnlyThatJob) {
  CompilerPool pool(PoolOptions(1, 1));
  Asked running(pool, Job("sleep 1000"));
  ASSERT_TRUE(Eventually(pool, [](auto stats) { return stats.running == 1; }));
  Asked waiting(pool, Job("answer waiting"));
  pool.Cancel(waiting.id());
  EXPECT_EQ(waiting.Get().status().code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(pool.stats().waiting, 0);
  pool.Cancel(running.id());
  EXPECT_EQ(running.Get().status().code(), absl::StatusCode::kCancelled);
  EXPECT_TRUE(Asked(pool, Job("answer next")).Get().ok());
  EXPECT_EQ(pool.stats().killed, 1);
  EXPECT_EQ(pool.stats().crashed, 0);
  pool.Cancel(running.id());  // answered already
}

TEST(CompilerPool, CancellingOneOfTwoLeavesTheOther) {
  Gate gate;
  CompilerPool pool(PoolOptions(1, 1));
  Asked one(pool, Job(gate.program()));
  Asked two(pool, Job(gate.program()));
  pool.Cancel(one.id());
  EXPECT_EQ(one.Get().status().code(), absl::StatusCode::kCancelled);
  gate.Open();
  EXPECT_TRUE(two.Get().ok());
  EXPECT_EQ(pool.stats().killed, 0);
}

TEST(CompilerPool, TheQueueHasLimits) {
  CompilerPool::Options options = PoolOptions(1, 1);
  options.queue = 2;
  options.queue_bytes = 1000;
  CompilerPool pool(options);
  Asked running(pool, Job("sleep 1000"));
  ASSERT_TRUE(Eventually(pool, [](auto stats) { return stats.running == 1; }));
  Asked large(pool, Job(absl::StrCat("answer ", std::string(2000, 'x'))));
  EXPECT_EQ(large.Get().status().code(), absl::StatusCode::kResourceExhausted);
  Asked first(pool, Job("answer 1")), second(pool, Job("answer 2")), third(pool, Job("answer 3"));
  EXPECT_EQ(third.Get().status().code(), absl::StatusCode::kResourceExhausted);
  pool.Cancel(running.id());
  EXPECT_TRUE(first.Get().ok());
  EXPECT_TRUE(second.Get().ok());
}

TEST(CompilerPool, ASessionsEndlessProgramsLeaveRoomForOthers) {
  CompilerPool::Options options = PoolOptions(1, 3);
  options.slow = absl::Milliseconds(50);
  CompilerPool pool(options);
  std::vector<Asked> endless;
  for (int i = 0; i < 6; ++i) endless.emplace_back(pool, Job(absl::StrCat("sleep ", 1000 + i)), /*session=*/1);
  ASSERT_TRUE(Eventually(pool, [](auto stats) { return stats.running == 2; }));
  EXPECT_TRUE(Asked(pool, Job("answer"), /*session=*/2).Get().ok());
  EXPECT_EQ(pool.stats().running, 2);
  for (Asked& one : endless) {
    EXPECT_TRUE(one.Pending());
    pool.Cancel(one.id());
  }
  EXPECT_TRUE(Eventually(pool, [](auto stats) { return stats.processes == 1; })) << "extra processes go";
}

TEST(CompilerPool, ProcessesThatDieIdleAreReplaced) {
  CompilerPool pool(PoolOptions(1, 1));
  Result first = Asked(pool, Job("answer 1")).Get();
  ASSERT_TRUE(first.ok());
  int pid = 0;
  ASSERT_TRUE(absl::SimpleAtoi((*first)->text(), &pid));
  ASSERT_EQ(kill(pid, SIGKILL), 0);
  while (kill(pid, 0) == 0) absl::SleepFor(absl::Milliseconds(1));
  Result second = Asked(pool, Job("answer 2")).Get();
  ASSERT_TRUE(second.ok()) << second.status();
  EXPECT_NE((*first)->text(), (*second)->text());
}

TEST(CompilerPool, NoCompilerIsAnErrorInWords) {
  CompilerPool::Options options = PoolOptions(1, 1);
  options.argv = {"/no/such/compiler"};
  CompilerPool pool(options);
  absl::Status status = Asked(pool, Job("answer")).Get().status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()), HasSubstr("/no/such/compiler"));
}

TEST(CompilerPool, EndingThePoolAnswersEverybody) {
  std::vector<Asked> asked;
  {
    CompilerPool pool(PoolOptions(2, 2));
    for (int i = 0; i < 10; ++i) asked.emplace_back(pool, Job(absl::StrCat("sleep ", 1000 + i)), /*session=*/i);
  }
  for (Asked& one : asked) EXPECT_EQ(one.Get().status().code(), absl::StatusCode::kCancelled);
}

// Every job is answered exactly once, whatever several threads ask for and take back.
TEST(CompilerPool, ManyThreadsAtOnce) {
  CompilerPool::Options options = PoolOptions(2, 4);
  options.slow = absl::Milliseconds(1);
  options.cache_bytes = 2000;
  std::atomic<int> answers = 0;
  constexpr int kThreads = 4, kJobs = 60;
  {
    CompilerPool pool(options);
    std::vector<std::thread> threads;
    for (int thread = 0; thread < kThreads; ++thread) {
      threads.emplace_back([&, thread] {
        std::mt19937 random(thread);
        for (int i = 0; i < kJobs; ++i) {
          const int kind = static_cast<int>(random() % 10);
          const std::string program = kind == 0   ? absl::StrCat("crash ", random() % 3)
                                      : kind == 1 ? absl::StrCat("fail ", random() % 3)
                                      : kind < 4  ? absl::StrCat("sleep 0.00", random() % 9)
                                                  : absl::StrCat("answer ", random() % 20);
          auto id = pool.Compile(thread, Job(program), [&](const Result&) { ++answers; });
          if (random() % 3 == 0) pool.Cancel(id - random() % 4);
          if (random() % 8 == 0) absl::SleepFor(absl::Milliseconds(5));
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
  EXPECT_EQ(answers, kThreads * kJobs);
}

}  // namespace
}  // namespace parkway::compiler
