#include "cli/cluster.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

namespace parkway::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class ClusterTest : public ::testing::Test {
 protected:
  ClusterTest() {
    std::string pattern = "/tmp/parkway-cluster-test-XXXXXX";
    home_ = mkdtemp(pattern.data());
    setenv("XDG_STATE_HOME", home_.c_str(), 1);
    name_ = "test-" + std::to_string(getpid());
  }
  ~ClusterTest() override {
    if (const auto paths = PathsOf(name_); paths.ok()) RemoveRuntimeFiles(*paths);
    std::filesystem::remove_all(home_);
  }
  std::string home_, name_;
};

TEST_F(ClusterTest, NamesThatMayBeInAPath) {
  EXPECT_TRUE(PathsOf("a-1_b.c").ok());
  for (const char* bad : {"", "A", "a/b", "..", "-x", "a b", "0123456789012345678901234567890123456789x"}) {
    EXPECT_EQ(PathsOf(bad).status().code(), absl::StatusCode::kInvalidArgument) << bad;
  }
}

TEST_F(ClusterTest, SocketPathIsShortAndLowerCase) {
  setenv("XDG_STATE_HOME", (home_ + "/Users/Me").c_str(), 1);
  EXPECT_EQ(PathsOf("x")->proxy_socket, "/tmp/parkway-" + std::to_string(getuid()) + "/x/proxy.sock");
  setenv("XDG_STATE_HOME", ("/tmp/" + std::string(120, 'd')).c_str(), 1);
  EXPECT_EQ(PathsOf("x")->proxy_socket, "/tmp/parkway-" + std::to_string(getuid()) + "/x/proxy.sock");
  setenv("XDG_STATE_HOME", "/tmp/lower", 1);
  EXPECT_EQ(PathsOf("x")->proxy_socket, "/tmp/lower/parkway/x/proxy.sock");
}

TEST_F(ClusterTest, DirectoriesArePrivate) {
  const ClusterPaths paths = *PathsOf(name_);
  std::filesystem::create_directories(paths.dir);
  chmod(paths.dir.c_str(), 0755);
  ASSERT_TRUE(MakeDirectories(paths).ok());
  for (const std::string& dir : {paths.dir, paths.logs, paths.transfers}) {
    struct stat info {};
    ASSERT_EQ(stat(dir.c_str(), &info), 0);
    EXPECT_EQ(info.st_mode & 0777, 0700u) << dir;
  }
}

TEST_F(ClusterTest, ALinkInThePlaceOfADirectoryIsRefused) {
  const ClusterPaths paths = *PathsOf(name_);
  std::filesystem::create_directories(paths.dir);
  std::filesystem::create_directory_symlink("/tmp", paths.logs);
  EXPECT_THAT(MakeDirectories(paths).message(), HasSubstr("is not a directory of this user"));
}

TEST_F(ClusterTest, TheLockTellsWhoHoldsIt) {
  const ClusterPaths paths = *PathsOf(name_);
  ASSERT_TRUE(MakeDirectories(paths).ok());
  EXPECT_EQ(SupervisorOf(paths), 0);
  int ready[2], done[2];
  ASSERT_EQ(pipe(ready), 0);
  ASSERT_EQ(pipe(done), 0);
  const pid_t child = fork();
  if (child == 0) {
    char byte = TakeLock(paths).ok() ? 'y' : 'n';
    if (write(ready[1], &byte, 1) != 1 || read(done[0], &byte, 1) != 1) _exit(1);
    _exit(0);
  }
  char byte = 0;
  ASSERT_EQ(read(ready[0], &byte, 1), 1);
  EXPECT_EQ(byte, 'y');
  EXPECT_EQ(SupervisorOf(paths), child);
  const absl::Status second = TakeLock(paths);
  EXPECT_THAT(second.message(), HasSubstr("already runs here (process " + std::to_string(child) + ")"));
  EXPECT_THAT(second.message(), HasSubstr("parkway down --name " + name_));
  ASSERT_EQ(write(done[1], &byte, 1), 1);
  waitpid(child, nullptr, 0);
  EXPECT_EQ(SupervisorOf(paths), 0);
}

TEST_F(ClusterTest, NoRecordWithoutASupervisor) {
  const ClusterPaths paths = *PathsOf(name_);
  ASSERT_TRUE(MakeDirectories(paths).ok());
  ClusterRecord record{.name = name_, .proxy_address = "127.0.0.1:1"};
  ASSERT_TRUE(WriteRecord(paths, record).ok());
  const auto read = ReadRecord(paths);
  EXPECT_THAT(read.status().message(), HasSubstr("`parkway up --name " + name_ + "` starts it"));
}

TEST(ClientEnvironment, SocketOrTcp) {
  const ClusterRecord record{
      .proxy_address = "127.0.0.1:29000", .proxy_socket = "/s/proxy.sock", .transfers = "/dev/shm/x"};
  auto env = ClientEnvironment(record, false);
  EXPECT_EQ(env["JAX_PLATFORMS"], "proxy");
  EXPECT_EQ(env["JAX_BACKEND_TARGET"], "grpc://unix:/s/proxy.sock");
  EXPECT_EQ(env["IFRT_PROXY_USE_INSECURE_GRPC_CREDENTIALS"], "true");
  EXPECT_EQ(env["IFRT_PROXY_GRPC_LARGE_TRANSFER_OPTIMIZATION_DIRECTORY"], "/dev/shm/x");
  env = ClientEnvironment(record, true);
  EXPECT_EQ(env["JAX_BACKEND_TARGET"], "grpc://127.0.0.1:29000");
  EXPECT_EQ(env.count("IFRT_PROXY_GRPC_LARGE_TRANSFER_OPTIMIZATION_DIRECTORY"), 0);
}

TEST_F(ClusterTest, Tail) {
  const std::string path = home_ + "/log";
  std::ofstream(path) << "a\nb\nc\nd\n";
  EXPECT_EQ(TailOf(path, 2, "  "), "  c\n  d\n");
  EXPECT_THAT(TailOf(home_ + "/none", 2, ""), HasSubstr("can't be read"));
  EXPECT_THAT(TailOf(path, 2, ""), Not(HasSubstr("a")));
}

}  // namespace
}  // namespace parkway::cli
