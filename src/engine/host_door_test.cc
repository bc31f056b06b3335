#include "engine/host_door.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/limits.h"
#include "engine/host_testing.h"

namespace parkway::engine {
namespace {

using ::testing::HasSubstr;
using namespace testing;  // NOLINT: host_testing.h

// A proxy's end of a connection.
struct Visitor {
  std::unique_ptr<fabric::Link> link;
  std::function<int()> pump;
  Record record;
  absl::Status closed;
};

class DoorTest : public ::testing::Test {
 protected:
  DoorTest()
      : engine_(SimEngine::Create({.devices = 1}, executor_)),
        bulk_(space_),
        pool_(MakeSimRunner(executor_)),
        host_({.incarnation = 7}, *engine_, bulk_, SimThreads(executor_, *pool_)),
        door_(host_, executor_,
              {.token = "secret", .own_threads = false, .lost = [this](const absl::Status& why) { ++lost_; }}) {}

  std::unique_ptr<Visitor> Connect() {
    auto visitor = std::make_unique<Visitor>();
    fabric::Fabric::Accepted accepted = door_.Accept("visitor");
    fabric::LinkHandlers handlers;
    handlers.on_message = [v = visitor.get()](std::string_view message) { v->record.Add(std::string(message)); };
    handlers.on_closed = [v = visitor.get()](absl::Status why) { v->closed = std::move(why); };
    fabric::SimLinkPair pair = fabric::MakeSimLinkPair(std::move(handlers), std::move(accepted.handlers));
    visitor->link = std::move(pair.a);
    visitor->pump = std::move(pair.pump);
    accepted.opened(std::move(pair.b));
    return visitor;
  }
  void Send(Visitor& visitor, const std::string& message) {
    visitor.link->Send(std::make_shared<const std::string>(message));
    Settle(visitor);
  }
  void Settle(Visitor& visitor) {
    do {
      executor_.RunUntilIdle();
    } while (visitor.pump() > 0);
  }
  std::string Hello(const std::string& token, bool control = false) {
    ProxyHello hello;
    hello.set_token(token);
    hello.add_devices(0);
    hello.set_control(control);
    return hello.SerializeAsString();
  }

  SimExecutor executor_;
  std::unique_ptr<SimEngine> engine_;
  std::shared_ptr<BulkSpace> space_ = std::make_shared<BulkSpace>();
  FakeBulk bulk_;
  std::unique_ptr<Runner> pool_;
  int lost_ = 0;
  EngineHost host_;
  HostDoor door_;
};

TEST_F(DoorTest, AProxyWithTheSecretIsServed) {
  auto operations = Connect();
  EXPECT_FALSE(door_.claimed());
  Send(*operations, Hello("secret"));
  EXPECT_TRUE(door_.claimed());
  ASSERT_EQ(operations->record.messages().size(), 1);
  EXPECT_EQ(operations->record.messages()[0].hello().incarnation(), 7);
  auto control = Connect();
  Send(*control, Hello("secret", true));
  ASSERT_EQ(control->record.messages().size(), 1);
  EXPECT_EQ(control->record.messages()[0].hello().incarnation(), 7);
  const Type type{ifrt::DType::kU8, {3}};
  Op put = MakePut(1, type, "abc", {0});
  put.set_seq(1);
  Send(*operations, put.SerializeAsString());
  Send(*control, MakeRead(1, 0, 50).SerializeAsString());
  Settle(*operations);
  EXPECT_EQ(operations->record.read(50).inline_bytes(), "abc");
  EXPECT_TRUE(operations->record.done(1));
  control->link->Close(absl::OkStatus());
  Settle(*control);
  EXPECT_EQ(lost_, 0);
  operations->link->Close(absl::OkStatus());
  Settle(*operations);
  EXPECT_EQ(lost_, 1);
}

TEST_F(DoorTest, NobodyElseIs) {
  auto garbage = Connect();
  Send(*garbage, "GET / HTTP/1.1");
  auto stranger = Connect();
  Send(*stranger, Hello("secreT"));
  auto early = Connect();
  Send(*early, Hello("secret", true));
  auto wordy = Connect();
  Send(*wordy, std::string(limits::kMaxHelloBytes + 1, 'x'));
  for (Visitor* visitor : {garbage.get(), stranger.get(), early.get(), wordy.get()}) {
    EXPECT_FALSE(visitor->closed.ok());
    EXPECT_TRUE(visitor->record.messages().empty());
  }
  EXPECT_FALSE(door_.claimed());
  auto operations = Connect();
  Send(*operations, Hello("secret"));
  EXPECT_EQ(operations->record.messages().size(), 1);
  auto second = Connect();
  Send(*second, Hello("secret"));
  EXPECT_FALSE(second->closed.ok());
  EXPECT_EQ(lost_, 0);
  EXPECT_TRUE(operations->closed.ok());
}

TEST_F(DoorTest, WhoSaysNothingIsShownOut) {
  std::vector<std::unique_ptr<Visitor>> visitors;
  for (int i = 0; i <= limits::kMaxUnknownCallers; ++i) visitors.push_back(Connect());
  Settle(*visitors.back());
  EXPECT_FALSE(visitors.back()->closed.ok());  // one too many
  EXPECT_TRUE(visitors.front()->closed.ok());
  executor_.Advance(limits::kHelloWait);
  for (auto& visitor : visitors) {
    Settle(*visitor);
    EXPECT_FALSE(visitor->closed.ok());
  }
  auto operations = Connect();
  Send(*operations, Hello("secret"));
  executor_.Advance(2 * limits::kHelloWait);
  Settle(*operations);
  EXPECT_TRUE(operations->closed.ok());
}

TEST_F(DoorTest, AMessageThatIsNoOperationEndsTheLease) {
  auto operations = Connect();
  Send(*operations, Hello("secret"));
  Send(*operations, "\xff\xff garbage");
  EXPECT_FALSE(operations->closed.ok());
  EXPECT_EQ(lost_, 1);
}

}  // namespace
}  // namespace parkway::engine
