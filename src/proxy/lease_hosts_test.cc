#include "proxy/lease_hosts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "base/limits.h"
#include "base/machine.h"
#include "base/status_wire.h"
#include "proxy/fake_session.h"

namespace parkway::proxy {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

// An engine's end of a link, as far as this test goes.
struct Remote {
  std::string address;
  fabric::LinkHandlers handlers;
  std::vector<std::string> received;
  bool open = true;
};

class TestLink : public fabric::Link {
 public:
  explicit TestLink(std::shared_ptr<Remote> remote) : remote_(std::move(remote)) {}
  ~TestLink() override { remote_->open = false; }
  void Send(fabric::Frame frame) override { remote_->received.push_back(*frame); }
  void Close(absl::Status) override { remote_->open = false; }
  void RunReadLoop() override {}
  std::string peer() const override { return remote_->address; }

 private:
  std::shared_ptr<Remote> remote_;
};

class LeaseHostsTest : public testing::Test {
 protected:
  LeaseHostsTest()
      : core_(&executor_, runtime::Topology({{.platform = "cpu", .hosts = 2, .devices_per_host = 2}})),
        hosts_({.executor = &executor_,
                .core = &core_,
                .connect = [this](const std::string& address, fabric::LinkHandlers handlers, auto done) {
                  if (refuse_) return done(absl::UnavailableError("nobody listens"));
                  remotes_.push_back(std::make_shared<Remote>(Remote{address, std::move(handlers), {}}));
                  done(std::unique_ptr<fabric::Link>(std::make_unique<TestLink>(remotes_.back())));
                }}) {
    placement_.set_lease(1);
    placement_.set_token("secret");
    auto* slice = placement_.add_slices();
    slice->set_slice("slice-0");
    for (int i = 0; i < 2; ++i) slice->add_hosts()->set_worker(absl::StrCat("w", i));
  }

  PlacedHost* Host(int i) { return placement_.mutable_slices(0)->mutable_hosts(i); }
  void Up(int host, uint64_t incarnation) {
    Host(host)->set_up(true);
    Host(host)->clear_cause();
    Host(host)->mutable_engine()->set_incarnation(incarnation);
    Host(host)->mutable_engine()->set_address(absl::StrCat("10.0.0.", host, ":1"));
  }
  void Down(int host, const std::string& why, bool returns) {
    Host(host)->set_up(false);
    Host(host)->clear_engine();
    *Host(host)->mutable_cause() = ToProto(absl::UnavailableError(why));
    Host(host)->set_returns(returns);
  }
  void Place() {
    hosts_.OnPlacement(placement_);
    executor_.RunUntilIdle();
  }
  void Answer(Remote& remote, const parkway::Events& events) {
    remote.handlers.on_message(events.SerializeAsString());
    executor_.RunUntilIdle();
  }
  static parkway::Events Hello() {
    parkway::Events events;
    events.mutable_hello()->set_devices(2);
    return events;
  }
  std::vector<std::string> Told() { return std::exchange(core_.events, {}); }

  SimExecutor executor_;
  FakeCore core_;
  bool refuse_ = false;
  std::vector<std::shared_ptr<Remote>> remotes_;
  LeaseHosts hosts_;
  Placement placement_;
};

TEST_F(LeaseHostsTest, TwoLinksToEachEngine) {
  Place();
  EXPECT_THAT(remotes_, IsEmpty()) << "no engine is up yet";
  Up(1, 70);
  Place();
  ASSERT_EQ(remotes_.size(), 1);
  ProxyHello hello;
  ASSERT_TRUE(hello.ParseFromString(remotes_[0]->received[0]));
  EXPECT_EQ(hello.token(), "secret");
  EXPECT_EQ(hello.host(), 1);
  EXPECT_THAT(hello.devices(), ElementsAre(2, 3));
  EXPECT_FALSE(hello.control());
  EXPECT_THAT(Told(), IsEmpty());
  Answer(*remotes_[0], Hello());
  ASSERT_EQ(remotes_.size(), 2);
  ASSERT_TRUE(hello.ParseFromString(remotes_[1]->received[0]));
  EXPECT_TRUE(hello.control());
  EXPECT_THAT(Told(), ElementsAre("up 1 70"));
  core_.links[1]->Send(std::make_shared<const std::string>("operation"));
  core_.links[1]->SendControl(std::make_shared<const std::string>("abort"));
  EXPECT_EQ(remotes_[0]->received[1], "operation");
  EXPECT_EQ(remotes_[1]->received[1], "abort");
  Answer(*remotes_[1], Hello());
  parkway::Events done;
  done.add_done(5);
  Answer(*remotes_[0], done);
  EXPECT_THAT(Told(), ElementsAre("events 1 70 1"));
  Place();
  EXPECT_EQ(remotes_.size(), 2) << "the same placement again changes nothing";
}

TEST_F(LeaseHostsTest, AnEngineOnThisMachineIsReachedByItsSocket) {
  Up(0, 70);
  Host(0)->mutable_engine()->set_unix_path("/run/e");
  Host(0)->mutable_engine()->set_machine("another");
  Place();
  EXPECT_EQ(remotes_[0]->address, "10.0.0.0:1");
  Up(1, 71);
  Host(1)->mutable_engine()->set_unix_path("/run/e");
  Host(1)->mutable_engine()->set_machine(MachineIdentity());
  Place();
  EXPECT_EQ(remotes_[1]->address, "unix:/run/e");
}

TEST_F(LeaseHostsTest, TheManagersCauseIsWaitedFor) {
  Up(0, 70);
  Place();
  Answer(*remotes_[0], Hello());
  Told();
  remotes_[0]->handlers.on_closed(absl::UnavailableError("broken pipe"));
  executor_.RunUntilIdle();
  EXPECT_THAT(Told(), IsEmpty()) << "a broken socket is a symptom";
  Down(0, "killed by signal 9", true);
  Place();
  EXPECT_THAT(Told(), ElementsAre("down 0 70 returns: killed by signal 9"));
  executor_.Advance(limits::kCauseWait * 2);
  Place();
  EXPECT_THAT(Told(), IsEmpty());
  Down(0, "worker w0 is lost", false);
  Place();
  EXPECT_THAT(Told(), ElementsAre("down 0 0: worker w0 is lost"));
  Up(0, 71);
  Place();
  Answer(*remotes_.back(), Hello());
  EXPECT_THAT(Told(), ElementsAre("up 0 71"));
}

TEST_F(LeaseHostsTest, WithoutACauseTheBrokenConnectionIsOne) {
  Up(0, 70);
  Place();
  Answer(*remotes_[0], Hello());
  Told();
  remotes_[0]->handlers.on_closed(absl::UnavailableError("broken pipe"));
  executor_.Advance(limits::kCauseWait + absl::Seconds(1));
  EXPECT_THAT(Told(), ElementsAre("down 0 70 returns: the connection with its engine broke: broken pipe"));
  ASSERT_EQ(remotes_.size(), 3) << "it is tried again";
  Answer(*remotes_[2], Hello());
  EXPECT_THAT(Told(), ElementsAre("up 0 70"));
}

TEST_F(LeaseHostsTest, AnEngineThatIsNotThereYetIsTriedAgain) {
  refuse_ = true;
  Up(0, 70);
  Place();
  executor_.Advance(limits::kRetryPeriod * 3);
  refuse_ = false;
  executor_.Advance(limits::kRetryPeriod * 2);
  ASSERT_EQ(remotes_.size(), 1);
  Answer(*remotes_[0], Hello());
  EXPECT_THAT(Told(), ElementsAre("up 0 70"));
}

TEST_F(LeaseHostsTest, AFrozenEnginesLinksAreDropped) {
  Up(0, 70);
  Place();
  Answer(*remotes_[0], Hello());
  Told();
  Down(0, "worker w0 is lost: no heartbeat", false);
  Place();
  EXPECT_FALSE(remotes_[0]->open);
  EXPECT_FALSE(remotes_[1]->open);
  Answer(*remotes_[0], Hello());
  EXPECT_THAT(Told(), ElementsAre("down 0 70: worker w0 is lost: no heartbeat")) << "nothing of it counts any more";
}

TEST_F(LeaseHostsTest, AnotherIncarnationMeansThatTheOldOneIsGone) {
  Up(0, 70);
  Place();
  Answer(*remotes_[0], Hello());
  Up(0, 71);
  Place();
  Answer(*remotes_.back(), Hello());
  EXPECT_THAT(Told(), ElementsAre("up 0 70", "down 0 70 returns: its engine was started again", "up 0 71"));
}

TEST_F(LeaseHostsTest, AnotherLeaseMeansThatAllIsGone) {
  Up(0, 70);
  Place();
  Answer(*remotes_[0], Hello());
  Told();
  placement_.set_lease(2);
  placement_.clear_slices();
  Place();
  EXPECT_FALSE(remotes_[0]->open);
  EXPECT_EQ(Told()[0], "down 0 70 returns: the manager ended the lease");
}

TEST_F(LeaseHostsTest, APlacementOfAnotherShapeIsNoCrash) {
  Up(0, 70);
  for (int i = 0; i < 5; ++i) placement_.mutable_slices(0)->add_hosts()->set_up(true);
  placement_.add_slices()->set_index(99);
  placement_.add_slices()->set_index(-1);
  Place();
  EXPECT_EQ(remotes_.size(), 1);
}

TEST(MissingExtensions, NamesWhatProgramsMayUse) {
  EXPECT_EQ(MissingExtensions(" fpu avx avx2 avx512f hypervisor", " fpu avx"), "avx2, avx512f");
  EXPECT_EQ(MissingExtensions(" avx avx2", " avx2 avx avx512f"), "");
  EXPECT_EQ(MissingExtensions(" avx2", ""), "");
}

}  // namespace
}  // namespace parkway::proxy
