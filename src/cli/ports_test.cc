#include "cli/ports.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>

namespace parkway::cli {
namespace {

using ::testing::HasSubstr;

TEST(Ports, NamesWhoHoldsThePort) {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  ASSERT_EQ(bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  ASSERT_EQ(listen(fd, 1), 0);
  socklen_t size = sizeof(address);
  getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size);
  const int port = ntohs(address.sin_port);
  const absl::Status status = CheckPortsFree({port});
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(status.message(),
              HasSubstr("port " + std::to_string(port) + " is in use by process " + std::to_string(getpid()) + " ("));
  close(fd);
  EXPECT_TRUE(CheckPortsFree({port}).ok());
}

TEST(Ports, NoPort) { EXPECT_EQ(CheckPortsFree({70000}).code(), absl::StatusCode::kInvalidArgument); }

TEST(Ports, FreeBase) {
  const auto base = FindFreeBase({0, 1, 5});
  ASSERT_TRUE(base.ok());
  EXPECT_TRUE(CheckPortsFree({*base, *base + 1, *base + 5}).ok());
}

}  // namespace
}  // namespace parkway::cli
