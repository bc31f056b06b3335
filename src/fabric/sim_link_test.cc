#include <gtest/gtest.h>

#include <vector>

#include "fabric/link.h"

namespace parkway::fabric {
namespace {

Frame MakeFrame(std::string text) { return std::make_shared<const std::string>(std::move(text)); }

struct Seen {
  std::vector<std::string> messages;
  std::vector<absl::Status> closed;
  LinkHandlers Handlers() {
    return {[this](std::string_view message) { messages.emplace_back(message); },
            [this](absl::Status why) { closed.push_back(why); }};
  }
};

TEST(SimLinkTest, DeliversInOrderWhenPumped) {
  Seen a, b;
  SimLinkPair pair = MakeSimLinkPair(a.Handlers(), b.Handlers());
  pair.a->Send(MakeFrame("1"));
  pair.a->Send(MakeFrame("2"));
  pair.b->Send(MakeFrame("3"));
  EXPECT_TRUE(b.messages.empty());
  EXPECT_EQ(pair.pump(), 3);
  EXPECT_EQ(b.messages, (std::vector<std::string>{"1", "2"}));
  EXPECT_EQ(a.messages, (std::vector<std::string>{"3"}));
  EXPECT_EQ(pair.pump(), 0);
}

TEST(SimLinkTest, CloseReachesBothEndsAfterWhatWasSent) {
  Seen a, b;
  SimLinkPair pair = MakeSimLinkPair(a.Handlers(), b.Handlers());
  pair.b->Send(MakeFrame("lost"));
  pair.a->Send(MakeFrame("last"));
  pair.a->Close(absl::AbortedError("enough"));
  pair.a->Send(MakeFrame("too late"));
  EXPECT_EQ(pair.pump(), 1);
  EXPECT_EQ(b.messages, (std::vector<std::string>{"last"}));
  ASSERT_EQ(a.closed.size(), 1u);
  EXPECT_EQ(a.closed[0].message(), "enough");
  ASSERT_EQ(b.closed.size(), 1u);
  EXPECT_EQ(b.closed[0].code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(pair.pump(), 0);
}

TEST(SimLinkTest, AHandlerMayDestroyItsLink) {
  SimLinkPair pair;
  Seen a;
  auto held = std::make_shared<int>(0);
  pair = MakeSimLinkPair(a.Handlers(), {[&pair, held](std::string_view) { pair.b.reset(); },
                                        [](absl::Status) { FAIL() << "after destruction"; }});
  pair.a->Send(MakeFrame("1"));
  pair.a->Send(MakeFrame("2"));
  EXPECT_EQ(pair.pump(), 1);
  EXPECT_EQ(held.use_count(), 1);
  EXPECT_EQ(a.closed.size(), 1u);
}

TEST(SimLinkTest, EmptyMessagesCloseTheLink) {
  Seen a, b;
  SimLinkPair pair = MakeSimLinkPair(a.Handlers(), b.Handlers());
  pair.a->Send(MakeFrame(""));
  pair.pump();
  ASSERT_EQ(a.closed.size(), 1u);
  EXPECT_EQ(a.closed[0].code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace parkway::fabric
