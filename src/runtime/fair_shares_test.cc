// Sessions that share devices, under the simulated clock: devices run launches in the order in which they come, each
// for as long as its program takes.
#include "runtime/fair_shares.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <optional>
#include <random>
#include <set>

#include "base/limits.h"
#include "runtime/core_fixture.h"

namespace parkway::runtime {
namespace {

constexpr absl::Duration kStep = absl::Microseconds(50);

class Shares : public ::testing::Test {
 protected:
  struct Client {
    std::unique_ptr<Session> session;
    Handle program = 0;
    int at_once = 0;  // launches that it keeps going
    int going = 0, done = 0;
    Handle next = 100;
  };

  void Start(std::vector<SliceSpec> slices) {
    fixture_.emplace(std::move(slices));
    fixture_->UpAll();
    seen_.assign(fixture_->engines.size(), 0);
    seen_control_ = seen_;
    free_at_.assign(fixture_->core->topology().devices().size(), absl::InfinitePast());
    ends_.clear();
    names_.clear();
  }
  void TearDown() override { clients_.clear(); }
  // A client whose program takes so long on those devices, and of which it wants so many in flight.
  Client& Join(std::vector<int> devices, absl::Duration takes, int at_once) {
    Client& client = *clients_.emplace_back(std::make_unique<Client>());
    const std::string name = "program " + std::to_string(clients_.size());
    fixture_->compiler.programs[name] =
        CoreFixture::MakeProgram(name, 0, 1, {8}, static_cast<int>(devices.size()), false);
    takes_[name] = takes;
    devices_[name] = devices;
    client.session = fixture_->core->OpenSession(name);
    client.session->Compile(CompileRequest{name, "", std::move(devices)},
                            [&](absl::StatusOr<CompileReply> reply) { client.program = reply->executable; });
    fixture_->executor.RunUntilIdle();
    client.at_once = at_once;
    return client;
  }
  // Each client launches as it likes, and the devices work, for so long.
  void Run(absl::Duration time) {
    const absl::Time end = fixture_->executor.Now() + time;
    while (fixture_->executor.Now() < end) {
      for (auto& client : clients_) Dispatch(*client);
      TakeOperations();
      fixture_->executor.Advance(kStep);
      EndLaunches();
    }
  }
  absl::Duration Used(const Client& client, int done_before = 0) const {
    return (client.done - done_before) * takes_.at("program " + std::to_string(NumberOf(client)));
  }
  // How much of `time` on a device a client had since it had ended so many.
  double Share(const Client& client, absl::Duration time, int done_before = 0) const {
    return absl::FDivDuration(Used(client, done_before), time);
  }

  std::vector<std::unique_ptr<Client>> clients_;
  std::optional<CoreFixture> fixture_;
  int launches_ = 0;
  absl::Duration latency_;  // until the core hears of an end; then ends say how long the launch ran

 private:
  size_t NumberOf(const Client& client) const {
    return std::find_if(clients_.begin(), clients_.end(), [&](const auto& c) { return c.get() == &client; }) -
           clients_.begin() + 1;
  }
  void Dispatch(Client& client) {
    if (client.session == nullptr) return;
    while (client.going < client.at_once && client.session->HasCredit()) {
      const Handle result = client.next++;
      ExecuteRequest request{.executable = client.program, .results = {&result, 1}};
      ASSERT_TRUE(client.session->Execute(request).ok());
      ++client.going;
      client.session->WhenReady({&result, 1}, [&client, result](const absl::Status&) {
        --client.going;
        ++client.done;
        client.session->Destruct({&result, 1});
      });
    }
  }
  void TakeOperations() {
    for (size_t host = 0; host < fixture_->engines.size(); ++host) {
      ScriptedEngine& engine = fixture_->engines[host];
      for (; seen_control_[host] < engine.control.size(); ++seen_control_[host]) OpenContext(static_cast<int>(host));
      for (; seen_[host] < engine.ops.size(); ++seen_[host]) {
        const Op& op = engine.ops[seen_[host]];
        if (op.kind_case() == Op::kLoad) names_[op.load().executable()] = op.load().name();
        if (op.kind_case() != Op::kLaunch || ends_.contains(op.seq())) continue;
        Launch(op.seq(), names_.at(op.launch().executable()));
      }
    }
  }
  void OpenContext(int host) {
    const Op& op = fixture_->engines[host].control[seen_control_[host]];
    if (op.kind_case() != Op::kOpenContext) return;
    Events events;
    events.add_contexts()->set_context(op.context());
    events.mutable_contexts(0)->set_open(true);
    opened_.emplace_back(host, events);
  }
  void Launch(uint64_t seq, const std::string& name) {
    ++launches_;
    absl::Time start = fixture_->executor.Now();
    for (int device : devices_[name]) start = std::max(start, free_at_[device]);
    for (int device : devices_[name]) free_at_[device] = start + takes_[name];
    ends_[seq] = {start + takes_[name], takes_[name], devices_[name]};
  }
  void EndLaunches() {
    for (auto& [host, events] : std::exchange(opened_, {})) fixture_->Send(host, events);
    std::map<int, Events> events;
    for (auto it = ends_.begin(); it != ends_.end();) {
      const auto [seq, end] = *it;
      if (end.at + latency_ > fixture_->executor.Now()) {
        ++it;
        continue;
      }
      std::set<int> hosts;
      for (int device : end.devices) hosts.insert(fixture_->core->topology().device(device).host);
      for (int host : hosts) {
        events[host].add_done(seq);
        if (latency_ == absl::ZeroDuration()) continue;
        Ran* ran = events[host].add_ran();
        ran->set_seq(seq);
        ran->set_nanoseconds(absl::ToInt64Nanoseconds(end.ran));
      }
      it = ends_.erase(it);
    }
    for (auto& [host, what] : events) fixture_->Send(host, what);
  }

  std::map<std::string, absl::Duration> takes_;
  std::map<std::string, std::vector<int>> devices_;
  std::map<uint64_t, std::string> names_;
  struct End {
    absl::Time at;
    absl::Duration ran;
    std::vector<int> devices;
  };
  std::map<uint64_t, End> ends_;
  std::vector<std::pair<int, Events>> opened_;
  std::vector<absl::Time> free_at_;
  std::vector<size_t> seen_, seen_control_;
};

TEST_F(Shares, OneThatIsAloneKeepsItsDeviceBusy) {
  for (absl::Duration takes : {absl::Microseconds(100), absl::Milliseconds(1), absl::Milliseconds(100)}) {
    clients_.clear();
    Start({{"cpu", 1, 1}});
    Client& alone = Join({0}, takes, 1000);
    Run(absl::Seconds(1));
    EXPECT_GT(Share(alone, absl::Seconds(1)), 0.97) << takes;
  }
}

TEST_F(Shares, FloodsOfLongAndShortProgramsHaveEqualTime) {
  Start({{"cpu", 1, 1}});
  Client& shorter = Join({0}, absl::Milliseconds(1), 1000);
  Client& longer = Join({0}, absl::Milliseconds(20), 1000);
  Run(absl::Seconds(4));
  EXPECT_NEAR(Share(shorter, absl::Seconds(4)), 0.5, 0.05);
  EXPECT_NEAR(Share(longer, absl::Seconds(4)), 0.5, 0.05);
}

TEST_F(Shares, TimeOnTheWayIsNotDeviceTime) {
  latency_ = absl::Milliseconds(3);
  Start({{"cpu", 1, 1}});
  Client& shorter = Join({0}, absl::Milliseconds(1), 1000);
  Client& longer = Join({0}, absl::Milliseconds(20), 1000);
  Run(absl::Seconds(4));
  EXPECT_NEAR(absl::FDivDuration(Used(shorter), Used(longer)), 1.0, 0.15);
}

TEST_F(Shares, ThreeHaveAThirdEach) {
  Start({{"cpu", 1, 1}});
  for (int ms : {1, 3, 7}) Join({0}, absl::Milliseconds(ms), 1000);
  Run(absl::Seconds(3));
  for (const auto& client : clients_) EXPECT_NEAR(Share(*client, absl::Seconds(3)), 0.333, 0.04);
}

TEST_F(Shares, OneThatWaitsForEachResultHasItsShareBesideAFlood) {
  Start({{"cpu", 1, 1}});
  Client& flood = Join({0}, absl::Milliseconds(5), 4000);
  Run(absl::Seconds(1));
  Client& modest = Join({0}, absl::Milliseconds(5), 1);
  const int before = flood.done;
  Run(absl::Seconds(2));
  EXPECT_GT(Share(modest, absl::Seconds(2)), 0.42);
  EXPECT_GT(Share(flood, absl::Seconds(2), before), 0.42);
}

TEST_F(Shares, AFloodWaitsInTheProxy) {
  Start({{"cpu", 1, 1}});
  Client& flood = Join({0}, absl::Milliseconds(10), 4000);
  Run(absl::Seconds(1));
  EXPECT_GT(flood.going, 3900);
  Client& other = Join({0}, absl::Milliseconds(1), 1);
  Run(limits::kAloneLaunches * absl::Milliseconds(10) + absl::Milliseconds(5));
  EXPECT_GE(other.done, 1);
}

TEST_F(Shares, OneThatIsLateHasNoMoreThanItsShare) {
  Start({{"cpu", 1, 1}});
  Client& first = Join({0}, absl::Milliseconds(2), 1000);
  Run(absl::Seconds(2));
  const int before = first.done;
  Client& late = Join({0}, absl::Milliseconds(2), 1000);
  Run(absl::Seconds(1));
  EXPECT_NEAR(Share(first, absl::Seconds(1), before), 0.5, 0.06);
  EXPECT_NEAR(Share(late, absl::Seconds(1)), 0.5, 0.06);
}

TEST_F(Shares, OtherDevicesAreNotDisturbed) {
  Start({{"cpu", 1, 2}, {"cpu", 1, 2}});
  Join({0}, absl::Milliseconds(3), 1000);
  Join({0}, absl::Milliseconds(3), 1000);
  Client& same_host = Join({1}, absl::Milliseconds(3), 1000);
  Client& other_host = Join({2, 3}, absl::Milliseconds(3), 1000);
  Run(absl::Seconds(1));
  EXPECT_GT(Share(same_host, absl::Seconds(1)), 0.95);
  EXPECT_GT(Share(other_host, absl::Seconds(1)), 0.95);
}

TEST_F(Shares, AGangSharesWithThoseOnEachOfItsHosts) {
  Start({{"cpu", 1, 1}, {"cpu", 1, 1}});
  Client& gang = Join({0, 1}, absl::Milliseconds(4), 1000);
  Client& left = Join({0}, absl::Milliseconds(2), 1000);
  Client& right = Join({1}, absl::Milliseconds(5), 1000);
  Run(absl::Seconds(4));
  for (const Client* client : {&gang, &left, &right}) EXPECT_NEAR(Share(*client, absl::Seconds(4)), 0.5, 0.15);
}

TEST_F(Shares, AProgramThatRunsForLongHoldsUpNobody) {
  Start({{"cpu", 1, 1}});
  Client& endless = Join({0}, absl::Hours(10), 3);
  Run(absl::Milliseconds(100));
  Client& other = Join({0}, absl::Milliseconds(1), 1);
  Run(absl::Milliseconds(100));
  const int before = launches_;
  Run(limits::kShareWait);
  EXPECT_GT(launches_, before);
  EXPECT_EQ(endless.done + other.done, 0);
}

TEST_F(Shares, OneThatEndsWhileItWaitsForItsTurnLetsTheOthersGoOn) {
  Start({{"cpu", 1, 1}});
  Client& first = Join({0}, absl::Milliseconds(20), 100);
  Client& second = Join({0}, absl::Milliseconds(20), 100);
  Run(absl::Milliseconds(200));
  first.session.reset();
  const int before = second.done;
  Run(absl::Seconds(2));
  EXPECT_GT(Share(second, absl::Seconds(2), before), 0.85);
}

TEST_F(Shares, WhateverTheyWantAllComeToAnEnd) {
  for (unsigned seed = 0; seed < 20; ++seed) {
    std::mt19937 random(seed);
    clients_.clear();
    Start({{"cpu", 2, 2}, {"cpu", 2, 2}});
    for (int i = 0; i < 8; ++i) {
      std::vector<int> devices = {0, 1, 2, 3, 4, 5, 6, 7};
      std::shuffle(devices.begin(), devices.end(), random);
      devices.resize(1 + random() % 8);
      Join(std::move(devices), absl::Microseconds(100 << (random() % 7)), 1 + static_cast<int>(random() % 50));
    }
    Run(absl::Milliseconds(500));
    for (const auto& client : clients_) {
      EXPECT_GT(client->done, 0) << seed;
      client->at_once = 0;
    }
    Run(absl::Seconds(4));
    for (const auto& client : clients_) EXPECT_EQ(client->going, 0) << seed;
  }
}

}  // namespace
}  // namespace parkway::runtime
