#include "engine/compiler/frame.h"

#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <thread>

#include "gtest/gtest.h"
#include "proto/parkway/compiler.pb.h"

namespace parkway::compiler {
namespace {

class FrameTest : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, ends_.data()), 0); }
  void TearDown() override {
    close(ends_[0]);
    if (ends_[1] >= 0) close(ends_[1]);
  }
  void CloseOther() { close(std::exchange(ends_[1], -1)); }

  std::array<int, 2> ends_;
};

TEST_F(FrameTest, MessagesComeAsTheyWent) {
  CompileJob large;
  large.set_program(std::string(40 << 20, 'x'));
  std::thread writer([&] {
    EXPECT_TRUE(WriteFrame(ends_[1], CompileJob()).ok());
    EXPECT_TRUE(WriteFrame(ends_[1], large).ok());
  });
  auto empty = ReadFrame(ends_[0]);
  ASSERT_TRUE(empty.ok());
  EXPECT_EQ(*empty, "");
  auto full = ReadFrame(ends_[0]);
  writer.join();
  ASSERT_TRUE(full.ok());
  EXPECT_EQ(*full, large.SerializeAsString());
}

TEST_F(FrameTest, AnOtherEndThatIsGoneIsUnavailable) {
  ASSERT_EQ(write(ends_[1], "\x08\0\0\0abc", 7), 7);
  CloseOther();
  EXPECT_TRUE(absl::IsUnavailable(ReadFrame(ends_[0]).status()));
  EXPECT_TRUE(absl::IsUnavailable(ReadFrame(ends_[0]).status()));
  EXPECT_TRUE(absl::IsUnavailable(WriteFrame(ends_[0], CompileJob())));
}

TEST_F(FrameTest, LyingLengthsCostNothing) {
  ASSERT_EQ(write(ends_[1], "\xff\xff\xff\xff", 4), 4);
  EXPECT_TRUE(absl::IsInvalidArgument(ReadFrame(ends_[0]).status()));
}

}  // namespace
}  // namespace parkway::compiler
