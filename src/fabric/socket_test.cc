#include "fabric/socket.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>

#include "fabric/connect.h"

namespace parkway::fabric {
namespace {

std::string UnixPath() { return testing::TempDir() + "/socket_test_" + std::to_string(getpid()); }

TEST(AddressTest, Parses) {
  EXPECT_EQ(ParseAddress("host:80")->host, "host");
  EXPECT_EQ(ParseAddress("host:080")->port, "80");
  EXPECT_EQ(ParseAddress("[::1]:80")->host, "::1");
  EXPECT_EQ(ParseAddress("unix:/a/b")->unix_path, "/a/b");
  for (const char* bad : {"", "host", "host:", ":80", "host:x", "host:65536", "host:-1", "unix:"}) {
    const absl::Status status = ParseAddress(bad).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << bad;
    EXPECT_NE(status.message().find(bad), std::string::npos);
  }
}

TEST(ListenTest, PicksAPortAndRefusesATakenOne) {
  auto first = ListenOn("127.0.0.1:0");
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_EQ(first->address.substr(0, 10), "127.0.0.1:");
  EXPECT_NE(first->address, "127.0.0.1:0");
  const absl::Status taken = ListenOn(first->address).status();
  EXPECT_EQ(taken.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_NE(taken.message().find(first->address), std::string::npos) << taken;
  EXPECT_NE(taken.message().find("Address already in use"), std::string::npos) << taken;
}

TEST(ListenTest, UnixSocketIsPrivateAndReplacesAStaleFile) {
  const std::string path = UnixPath(), address = "unix:" + path;
  {
    auto first = ListenOn(address);
    ASSERT_TRUE(first.ok()) << first.status();
    struct stat st {};
    ASSERT_EQ(lstat(path.c_str(), &st), 0);
    EXPECT_EQ(st.st_mode & 0777, 0600u);
    EXPECT_EQ(ListenOn(address).status().code(), absl::StatusCode::kFailedPrecondition);  // it lives
  }
  auto second = ListenOn(address);  // the first left its file, as after kill -9
  ASSERT_TRUE(second.ok()) << second.status();
  auto loop = std::make_shared<Loop>("test");
  {
    Acceptor acceptor(loop, *std::move(second), [](UniqueFd, std::string, std::shared_ptr<void>) {});
  }
  EXPECT_NE(access(path.c_str(), F_OK), 0);  // removed
  loop->Stop();
}

TEST(ListenTest, LeavesOtherFilesAlone) {
  const std::string path = UnixPath() + "_file";
  std::ofstream(path) << "mine";
  EXPECT_EQ(ListenOn("unix:" + path).status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(access(path.c_str(), F_OK), 0);
  unlink(path.c_str());
  const absl::Status too_long = ListenOn("unix:/" + std::string(200, 'x')).status();
  EXPECT_EQ(too_long.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ListenOn("unix:/no/such/folder/s").status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(ListenOn("no.such.host.invalid:1").status().code(), absl::StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace parkway::fabric
