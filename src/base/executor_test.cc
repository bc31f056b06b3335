#include "base/executor.h"

#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <thread>
#include <vector>

namespace parkway {
namespace {

TEST(SerialExecutorTest, RunsInlineWhenIdleAndAfterTheTaskWhenNot) {
  auto executor = MakeSerialExecutor();
  std::vector<int> order;
  const auto self = std::this_thread::get_id();
  executor->Post([&] {
    EXPECT_EQ(std::this_thread::get_id(), self);
    executor->Post([&] { order.push_back(2); });
    executor->Post([&] { order.push_back(3); });
    order.push_back(1);
  });
  EXPECT_EQ(order, (std::vector<int>{1, 2, 3}));
}

TEST(SerialExecutorTest, OneTaskAtATimeInOrderFromManyThreads) {
  auto executor = MakeSerialExecutor();
  std::atomic<bool> inside = false;
  int total = 0;
  std::vector<int> last(4, -1);
  {
    std::vector<std::jthread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([&, t] {
        for (int i = 0; i < 5000; ++i) {
          executor->Post([&, t, i] {
            EXPECT_FALSE(inside.exchange(true));
            EXPECT_EQ(last[t], i - 1);
            last[t] = i;
            ++total;
            inside = false;
          });
        }
      });
    }
  }
  std::promise<int> done;
  executor->Post([&] { done.set_value(total); });
  EXPECT_EQ(done.get_future().get(), 20'000);
}

TEST(SerialExecutorTest, TimersRunInOrderOfTime) {
  auto executor = MakeSerialExecutor();
  std::vector<int> order;
  std::promise<void> done;
  const absl::Time start = executor->Now();
  executor->Post([&] {
    executor->After(absl::Milliseconds(20), [&] {
      order.push_back(2);
      EXPECT_GE(executor->Now() - start, absl::Milliseconds(19));
      done.set_value();
    });
    executor->After(absl::Milliseconds(1), [&] { order.push_back(1); });
    executor->After(absl::InfiniteDuration(), [&] { order.push_back(3); });
  });
  done.get_future().wait();
  EXPECT_EQ(order, (std::vector<int>{1, 2}));
}

TEST(SerialExecutorTest, ATaskCancelsATimerThatIsAlreadyDue) {
  auto executor = MakeSerialExecutor();
  bool fired = false;
  std::promise<void> started, ended;
  executor->Post([&] {
    const TimerId timer = executor->After(absl::ZeroDuration(), [&] { fired = true; });
    std::this_thread::sleep_for(std::chrono::milliseconds(20));  // it is queued behind us now
    executor->Cancel(timer);
    executor->Cancel(timer);
  });
  executor->After(absl::Milliseconds(5), [&] { ended.set_value(); });
  ended.get_future().wait();
  EXPECT_FALSE(fired);
}

TEST(SerialExecutorTest, DestructionWaitsForTheTaskAndDropsTheRest) {
  auto executor = MakeSerialExecutor();
  std::promise<void> running;
  std::atomic<bool> ended = false, dropped_ran = false;
  auto held = std::make_shared<int>(1);
  std::jthread thread([&] {
    executor->Post([&] {
      running.set_value();
      std::this_thread::sleep_for(std::chrono::milliseconds(30));
      ended = true;
    });
  });
  running.get_future().wait();
  executor->Post([&, held] { dropped_ran = true; });
  executor.reset();
  EXPECT_TRUE(ended);
  EXPECT_FALSE(dropped_ran);
  EXPECT_EQ(held.use_count(), 1);
}

TEST(SimExecutorTest, NothingRunsUntilTold) {
  SimExecutor executor;
  std::vector<int> order;
  executor.Post([&] {
    order.push_back(1);
    executor.Post([&] { order.push_back(2); });
  });
  EXPECT_TRUE(order.empty());
  EXPECT_EQ(executor.RunUntilIdle(), 2);
  EXPECT_EQ(order, (std::vector<int>{1, 2}));
}

TEST(SimExecutorTest, AdvanceRunsTimersAtTheirTimes) {
  SimExecutor executor;
  const absl::Time start = executor.Now();
  std::vector<absl::Duration> at;
  TimerId second = 0;
  executor.After(absl::Seconds(1), [&] {
    at.push_back(executor.Now() - start);
    executor.Cancel(second);
    executor.After(absl::Seconds(1), [&] { at.push_back(executor.Now() - start); });
  });
  second = executor.After(absl::Milliseconds(1500), [&] { FAIL() << "was cancelled"; });
  executor.After(absl::Seconds(10), [&] { FAIL() << "not yet"; });
  executor.Advance(absl::Seconds(5));
  EXPECT_EQ(at, (std::vector<absl::Duration>{absl::Seconds(1), absl::Seconds(2)}));
  EXPECT_EQ(executor.Now() - start, absl::Seconds(5));
}

}  // namespace
}  // namespace parkway
