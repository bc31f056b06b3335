// Two engines in processes of their own, this one between them as the proxy is: relays keys, starts programs, kills.
#include <gmock/gmock.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <sstream>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/subprocess.h"

namespace parkway::engine {
namespace {

using testing::HasSubstr;

class Host {
 public:
  // `relay` gets the keys that this host publishes, as commands for the others.
  Host(int devices, std::function<void(const std::string&)> relay) : relay_(std::move(relay)) {
    int pair[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
    fd_ = pair[0];
    Subprocess::Options options;
    options.argv = {CONTEXT_MEMBER, absl::StrCat(devices)};
    options.fds = {{pair[1], 0}, {pair[1], 1}};
    auto process = Subprocess::Start(std::move(options));
    EXPECT_TRUE(process.ok()) << process.status();
    process_ = *std::move(process);
    close(pair[1]);
    reader_ = std::thread([this] { ReadLines(); });
  }
  ~Host() {
    process_->Kill(SIGKILL);
    reader_.join();
    close(fd_);
  }

  void Tell(const std::string& command) {
    const std::string line = command + "\n";
    (void)!send(fd_, line.data(), line.size(), MSG_NOSIGNAL);
  }
  // The next line that begins so; empty when none comes for a minute or the process has ended.
  std::string Hear(const std::string& begin) {
    std::unique_lock lock(mutex_);
    std::string heard;
    changed_.wait_for(lock, std::chrono::minutes(1), [&] {
      for (auto it = lines_.begin(); it != lines_.end(); ++it) {
        if (!absl::StartsWith(*it, begin)) continue;
        heard = *it;
        lines_.erase(it);
        return true;
      }
      return ended_;
    });
    return heard;
  }
  std::string Ask(const std::string& command, const std::string& begin) {
    Tell(command);
    return Hear(begin);
  }
  // {threads, fds}
  std::pair<int, int> Stats() {
    std::istringstream words(Ask("stats", "stats"));
    std::string word;
    std::pair<int, int> stats{0, 0};
    words >> word >> stats.first >> stats.second;
    return stats;
  }
  void Kill(int signal) { process_->Kill(signal); }
  bool ended() {
    std::lock_guard lock(mutex_);
    return ended_;
  }

 private:
  void ReadLines() {
    FILE* file = fdopen(dup(fd_), "r");
    char* line = nullptr;
    size_t size = 0;
    ssize_t length = 0;
    while ((length = getline(&line, &size, file)) > 0) {
      std::string text(line, length - 1);
      if (absl::StartsWith(text, "key ")) {
        relay_(text);
        continue;
      }
      std::lock_guard lock(mutex_);
      lines_.push_back(std::move(text));
      changed_.notify_all();
    }
    free(line);
    fclose(file);
    std::lock_guard lock(mutex_);
    ended_ = true;
    changed_.notify_all();
  }

  std::function<void(const std::string&)> relay_;
  int fd_ = -1;
  std::unique_ptr<Subprocess> process_;
  std::thread reader_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::string> lines_;
  bool ended_ = false;
};

class JaxlibContextTest : public testing::Test {
 protected:
  void Start(int devices) {
    devices_ = devices;
    for (int rank : {0, 1}) Replace(rank);
  }
  // A fresh process in place of host `rank`.
  void Replace(int rank) {
    std::unique_ptr<Host> old = Swap(rank, nullptr);
    old.reset();
    Swap(rank, std::make_unique<Host>(devices_, [this, rank](const std::string& key) {
           std::lock_guard lock(mutex_);
           if (hosts_[1 - rank] != nullptr) hosts_[1 - rank]->Tell(key);
         }));
  }
  Host& host(int rank) { return *hosts_[rank]; }

  void Open(int id) {
    for (int rank : {0, 1}) host(rank).Tell(absl::StrCat("open ", id, " ", rank, " ", devices_, " ", devices_));
    for (int rank : {0, 1}) ASSERT_EQ(host(rank).Hear("opened"), absl::StrCat("opened ", id, " OK"));
  }
  void Close(int id) {
    for (int rank : {0, 1}) host(rank).Tell(absl::StrCat("close ", id));
    for (int rank : {0, 1}) ASSERT_EQ(host(rank).Hear("closed"), absl::StrCat("closed ", id));
  }
  void Run(int id, const std::string& what) {
    for (int rank : {0, 1}) host(rank).Tell(absl::StrCat("run ", id, " ", what));
    for (int rank : {0, 1}) EXPECT_EQ(host(rank).Hear("ran"), absl::StrCat("ran ", id, " OK"));
  }

  // A client that was kept would show as some 70 threads and 10 files for each epoch; gRPC and the waiters come and go
  // by a few. Those of a client that was dropped may take a moment to end.
  void ExpectNoMoreThan(std::pair<int, int> before, Host& host) {
    std::pair<int, int> after;
    before.first += 10;
    for (int i = 0; i < 100; ++i) {
      after = host.Stats();
      if (after.first <= before.first && after.second <= before.second) return;
      absl::SleepFor(absl::Milliseconds(50));
    }
    EXPECT_LE(after.first, before.first) << "threads";
    EXPECT_LE(after.second, before.second) << "files";
  }

  int devices_ = 0;

 private:
  std::unique_ptr<Host> Swap(int rank, std::unique_ptr<Host> host) {
    std::lock_guard lock(mutex_);
    std::swap(hosts_[rank], host);
    return host;
  }
  std::mutex mutex_;
  std::unique_ptr<Host> hosts_[2];
};

TEST_F(JaxlibContextTest, AllReducesAreExact) {
  Start(1);
  Open(1);
  Run(1, "50 sum2 0 1");
  Run(1, "10 big_sum2 1 0");
  Close(1);
}

TEST_F(JaxlibContextTest, KindsOfLaunchesDoNotMixUp) {
  Start(2);
  Open(1);
  Run(1, "100 sum4 0 1 2 3 | sum2 0 2 | sum4 0 2 1 3 | sum2 1 3 | sum2 1 2 | big_sum2 0 2");
  Close(1);
}

TEST_F(JaxlibContextTest, TheOtherHostMayComeLater) {
  Start(1);
  ASSERT_EQ(host(0).Ask("open 1 0 1 1", "opened"), "opened 1 OK");
  host(0).Tell("run 1 3 sum2 0 1");
  absl::SleepFor(absl::Milliseconds(300));
  ASSERT_EQ(host(1).Ask("open 1 1 1 1", "opened"), "opened 1 OK");
  host(1).Tell("run 1 3 sum2 0 1");
  for (int rank : {0, 1}) EXPECT_EQ(host(rank).Hear("ran"), "ran 1 OK");
}

TEST_F(JaxlibContextTest, ALaunchWhosePeerNeverCameEndsWithItsContext) {
  for (int devices : {1, 2}) {
    Start(devices);
    const std::string sizes = absl::StrCat(devices, " ", devices);
    ASSERT_EQ(host(0).Ask(absl::StrCat("open 1 0 ", sizes), "opened"), "opened 1 OK");
    host(0).Tell(devices == 1 ? "loop 1 sum2 0 1" : "loop 1 sum4 0 1 2 3");
    absl::SleepFor(absl::Milliseconds(300));
    EXPECT_EQ(host(0).Ask("close 1", "closed"), "closed 1");
    EXPECT_THAT(host(0).Hear("ended"), HasSubstr("DATA_LOSS: slice 1 is lost"));
  }
}

class LostHost : public JaxlibContextTest, public testing::WithParamInterface<std::pair<int, int>> {};

TEST_P(LostHost, FailsTheOthersLaunchesAndNothingElse) {
  const auto [devices, signal] = GetParam();
  Start(devices);
  const std::string loop = devices == 1 ? "sum2 0 1" : "sum4 0 1 2 3";
  std::pair<int, int> before;
  for (int epoch = 1; epoch <= 4; ++epoch) {
    Open(epoch);
    for (int rank : {0, 1}) host(rank).Tell(absl::StrCat("loop ", epoch, " ", loop));
    absl::SleepFor(absl::Milliseconds(200));
    host(1).Kill(signal);
    absl::SleepFor(absl::Milliseconds(50));
    ASSERT_EQ(host(0).Ask(absl::StrCat("close ", epoch), "closed"), absl::StrCat("closed ", epoch));
    const std::string ended = host(0).Hear("ended");
    EXPECT_TRUE(absl::StrContains(ended, "DATA_LOSS: slice 1 is lost") || absl::StrContains(ended, "Gloo")) << ended;
    ASSERT_FALSE(host(0).ended());
    if (epoch == 1) {
      absl::SleepFor(absl::Seconds(1));
      before = host(0).Stats();
    }
    Replace(1);
  }
  ExpectNoMoreThan(before, host(0));
}

INSTANTIATE_TEST_SUITE_P(Kills, LostHost,
                         testing::Values(std::pair(1, SIGKILL), std::pair(2, SIGKILL), std::pair(1, SIGSTOP),
                                         std::pair(2, SIGSTOP)),
                         [](const auto& info) {
                           return absl::StrCat(info.param.first, "Devices",
                                               info.param.second == SIGKILL ? "Killed" : "Frozen");
                         });

TEST_F(JaxlibContextTest, ResultsOutliveTheirContext) {
  Start(1);
  Open(1);
  Open(2);
  for (int rank : {0, 1}) host(rank).Tell("loop 1 sum2 0 1");
  Run(2, "50 sum2 0 1");
  host(1).Kill(SIGKILL);
  host(0).Hear("ended 1");
  EXPECT_EQ(host(0).Ask("adopt 1", "adopted"), "adopted 1 OK");
  ASSERT_EQ(host(0).Ask("close 1", "closed"), "closed 1");
}

TEST_F(JaxlibContextTest, EpochsLeakNothing) {
  Start(2);
  std::pair<int, int> before;
  for (int epoch = 1; epoch <= 50; ++epoch) {
    Open(epoch);
    Run(epoch, "5 sum4 0 1 2 3 | sum2 0 2");
    Close(epoch);
    if (epoch == 10) before = host(0).Stats();
  }
  ExpectNoMoreThan(before, host(0));
}

}  // namespace
}  // namespace parkway::engine
