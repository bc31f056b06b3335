#include "base/subprocess.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <future>
#include <thread>

namespace parkway {
namespace {

constexpr absl::Duration kLong = absl::Seconds(30);

Subprocess::Options Shell(std::string script) {
  Subprocess::Options options;
  options.argv = {"sh", "-c", std::move(script)};
  return options;
}

std::string ReadAll(int fd) {
  std::string text;
  char buffer[256];
  for (ssize_t n; (n = read(fd, buffer, sizeof(buffer))) > 0;) text.append(buffer, static_cast<size_t>(n));
  return text;
}

TEST(SubprocessTest, TellsHowItEnded) {
  std::promise<ExitStatus> exited;
  auto child = Subprocess::Start(Shell("exit 3"), [&](ExitStatus status) { exited.set_value(status); });
  ASSERT_TRUE(child.ok()) << child.status();
  const ExitStatus status = exited.get_future().get();
  EXPECT_EQ(status.words(), "exited with 3");
  EXPECT_FALSE(status.ok());
  EXPECT_EQ((*child)->Wait(kLong)->code, 3);
  (*child)->Kill(SIGKILL);  // long gone: nothing happens
}

TEST(SubprocessTest, KillReachesTheWholeGroup) {
  int fds[2];
  ASSERT_EQ(pipe2(fds, O_CLOEXEC), 0);
  auto options = Shell("sleep 1000 & sleep 1000");
  options.fds = {{fds[1], 1}};
  auto child = Subprocess::Start(std::move(options));
  ASSERT_TRUE(child.ok()) << child.status();
  close(fds[1]);
  EXPECT_FALSE((*child)->Wait(absl::Milliseconds(10)).has_value());
  (*child)->Kill(SIGKILL);
  EXPECT_EQ((*child)->Wait(kLong)->words(), "killed by signal 9");
  EXPECT_EQ(ReadAll(fds[0]), "");  // returns only when the inner sleep is gone too
  close(fds[0]);
}

TEST(SubprocessTest, EnvironmentDescriptorsAndNoOthers) {
  int fds[2];
  ASSERT_EQ(pipe(fds), 0);  // no CLOEXEC: must not leak all the same
  setenv("PARKWAY_TEST_OLD", "old", 1);
  auto options = Shell("echo $PARKWAY_TEST_OLD $PARKWAY_TEST_NEW >&7; ls /proc/self/fd | wc -l >&7");
  options.env = {{"PARKWAY_TEST_OLD", "replaced"}, {"PARKWAY_TEST_NEW", "new"}};
  options.fds = {{fds[1], 7}};
  auto child = Subprocess::Start(std::move(options));
  ASSERT_TRUE(child.ok()) << child.status();
  close(fds[1]);
  EXPECT_EQ(ReadAll(fds[0]), "replaced new\n5\n");  // 0, 1, 2, 7 and the one that ls opens
  close(fds[0]);
}

TEST(SubprocessTest, DescriptorsMaySwap) {
  int a[2], b[2];
  ASSERT_EQ(pipe2(a, O_CLOEXEC), 0);
  ASSERT_EQ(pipe2(b, O_CLOEXEC), 0);
  auto options = Shell("echo a >&" + std::to_string(b[1]) + "; echo b >&" + std::to_string(a[1]));
  options.fds = {{a[1], b[1]}, {b[1], a[1]}};
  auto child = Subprocess::Start(std::move(options));
  ASSERT_TRUE(child.ok()) << child.status();
  close(a[1]);
  close(b[1]);
  EXPECT_EQ(ReadAll(a[0]), "a\n");
  EXPECT_EQ(ReadAll(b[0]), "b\n");
  close(a[0]);
  close(b[0]);
}

TEST(SubprocessTest, WhatCannotStartSaysSo) {
  Subprocess::Options options;
  EXPECT_EQ(Subprocess::Start(options).status().code(), absl::StatusCode::kInvalidArgument);
  options.argv = {"/no/such/program"};
  const absl::Status status = Subprocess::Start(options).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_NE(status.message().find("/no/such/program"), std::string::npos) << status;
  options.argv = {"no-such-program-in-path"};
  EXPECT_EQ(Subprocess::Start(options).status().code(), absl::StatusCode::kUnavailable);
  options.argv = {"true"};
  options.fds = {{9999, 5}};
  EXPECT_EQ(Subprocess::Start(options).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(SubprocessTest, DestructionKills) {
  std::promise<ExitStatus> exited;
  auto child = Subprocess::Start(Shell("sleep 1000"), [&](ExitStatus status) { exited.set_value(status); });
  ASSERT_TRUE(child.ok());
  child->reset();
  EXPECT_EQ(exited.get_future().get().signal, SIGKILL);
}

// The parent of the next test: its own process, so that it can be killed.
TEST(SubprocessTest, DISABLED_ParentForTheNextTest) {
  std::thread([] {
    auto options = Shell("echo started; exec sleep 1000");
    options.fds = {{1, 1}};
    Subprocess::Start(std::move(options)).value().release();  // kept: only our own death ends it
  }).join();
  pause();
}

TEST(SubprocessTest, DiesWithItsParentAlsoWhenStartedFromAThreadThatEnded) {
  int fds[2];
  ASSERT_EQ(pipe2(fds, O_CLOEXEC), 0);
  Subprocess::Options options;
  options.argv = {"/proc/self/exe", "--gtest_also_run_disabled_tests", "--gtest_brief=1",
                  "--gtest_filter=*ParentForTheNextTest"};
  options.fds = {{fds[1], 1}};
  auto parent = Subprocess::Start(std::move(options));
  ASSERT_TRUE(parent.ok()) << parent.status();
  close(fds[1]);
  std::string text;
  for (char c; text.find("started\n") == std::string::npos && read(fds[0], &c, 1) == 1;) text.push_back(c);
  ASSERT_EQ(text.find("started\n"), text.size() - 8);
  (*parent)->Kill(SIGKILL);
  EXPECT_EQ((*parent)->Wait(kLong)->signal, SIGKILL);
  EXPECT_EQ(ReadAll(fds[0]), "");  // the shell in its own group is gone too: nobody holds the pipe
  close(fds[0]);
}

}  // namespace
}  // namespace parkway
