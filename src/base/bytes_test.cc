#include "base/bytes.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "base/limits.h"

namespace parkway {
namespace {

TEST(BytesTest, SliceSharesTheOwner) {
  Bytes bytes = Bytes::OfString("0123456789");
  Bytes slice = bytes.Slice(3, 4);
  bytes = Bytes();
  EXPECT_EQ(slice.view(), "3456");
  EXPECT_EQ(slice.Slice(2, 100).view(), "56");
  EXPECT_EQ(slice.Slice(100, 1).size, 0u);
}

TEST(BlobTest, IsZeroAlignedAndMappedByOthers) {
  auto blob = Blob::Create(100'000);
  ASSERT_TRUE(blob.ok());
  EXPECT_EQ(reinterpret_cast<uintptr_t>((*blob)->data()) % 64, 0u);
  EXPECT_EQ((*blob)->data()[99'999], 0);
  std::memset((*blob)->data(), 7, 100'000);
  const Bytes shared = Blob::Share(*blob);
  const pid_t child = fork();
  if (child == 0) {
    auto mapped = Blob::Map(shared.local_path, 100'000);
    _exit(mapped.ok() && mapped->data[99'999] == 7 && mapped->size == 100'000 ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

TEST(BlobTest, SharedBytesOutliveTheBlobAndCanBeHandedOn) {
  auto blob = Blob::Create(5000);
  ASSERT_TRUE(blob.ok());
  std::memcpy((*blob)->data(), "hello", 5);
  const std::string path = Blob::Share(*blob).local_path;
  auto mapped = Blob::Map(path, 5000);
  ASSERT_TRUE(mapped.ok()) << mapped.status();
  blob->reset();
  EXPECT_EQ(mapped->view().substr(0, 5), "hello");
  EXPECT_EQ(Blob::Map(path, 5000).status().code(), absl::StatusCode::kFailedPrecondition);
  auto again = Blob::Map(mapped->local_path, 5000);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->view().substr(0, 5), "hello");
}

TEST(BlobTest, AnotherBlockUnderTheSameNumberIsRefused) {
  auto first = Blob::Create(64);
  const std::string path = Blob::Share(*first).local_path;
  first->reset();
  auto second = Blob::Create(64);
  ASSERT_EQ(Blob::Share(*second).local_path.substr(0, path.find('#')), path.substr(0, path.find('#')));
  EXPECT_EQ(Blob::Map(path, 64).status().code(), absl::StatusCode::kFailedPrecondition);
}

constexpr size_t kLarge = limits::kSmallestWarmBlock;

// A size that no other test has, so that each finds its own blocks alone.
std::shared_ptr<Blob> LargeBlock(size_t more) {
  auto blob = Blob::CreateForOverwrite(kLarge + more);
  EXPECT_TRUE(blob.ok()) << blob.status();
  return *blob;
}

// A block of a size that the machine doesn't have: what is kept is freed.
absl::Status MakeTooLarge() { return Blob::Create(size_t{1} << 62).status(); }

struct WarmBlobTest : testing::Test {
  ~WarmBlobTest() override { MakeTooLarge().IgnoreError(); }  // other tests want low descriptors
};

TEST_F(WarmBlobTest, ABlockThatNobodyUsesIsWrittenOnAgain) {
  auto first = LargeBlock(64);
  const uint8_t* place = first->data();
  std::memset(first->data(), 7, first->size());
  first.reset();
  auto second = LargeBlock(64);
  EXPECT_EQ(second->data(), place);
  EXPECT_NE(LargeBlock(64)->data(), place) << "the same block for two at once";
  EXPECT_NE(LargeBlock(128)->data(), place);
}

TEST_F(WarmBlobTest, ZeroFilledBlocksAreNew) {
  auto first = LargeBlock(192);
  std::memset(first->data(), 7, first->size());
  first.reset();
  auto zeros = Blob::Create(kLarge + 192);
  ASSERT_TRUE(zeros.ok());
  EXPECT_EQ((*zeros)->data()[0], 0);
}

TEST_F(WarmBlobTest, ABlockThatIsMappedKeepsItsBytes) {
  auto first = LargeBlock(256);
  const uint8_t* place = first->data();
  std::memset(first->data(), 7, first->size());
  auto mapped = Blob::Map(Blob::Share(first).local_path, first->size());
  ASSERT_TRUE(mapped.ok()) << mapped.status();
  first.reset();
  auto second = LargeBlock(256);
  EXPECT_NE(second->data(), place);
  std::memset(second->data(), 8, second->size());
  EXPECT_EQ(mapped->data[0], 7);
  // What was handed on counts as well.
  auto handed_on = Blob::Map(mapped->local_path, mapped->size);
  ASSERT_TRUE(handed_on.ok()) << handed_on.status();
  mapped = Bytes();
  EXPECT_NE(LargeBlock(256)->data(), place);
  EXPECT_EQ(handed_on->data[0], 7);
  handed_on = Bytes();
  std::vector<std::shared_ptr<Blob>> blocks;
  bool reused = false;
  for (int i = 0; i < 3; ++i) reused |= blocks.emplace_back(LargeBlock(256))->data() == place;
  EXPECT_TRUE(reused);
}

TEST_F(WarmBlobTest, AnotherProcessKeepsABlockUntilItIsKilled) {
  auto first = LargeBlock(320);
  const uint8_t* place = first->data();
  const std::string path = Blob::Share(first).local_path;
  int ready[2];
  ASSERT_EQ(pipe(ready), 0);
  const pid_t child = fork();
  if (child == 0) {
    auto mapped = Blob::Map(path, kLarge + 320);
    const bool told = write(ready[1], mapped.ok() ? "y" : "n", 1) == 1;
    while (told) pause();
    _exit(1);
  }
  char answer = 0;
  ASSERT_EQ(read(ready[0], &answer, 1), 1);
  EXPECT_EQ(answer, 'y');
  first.reset();
  EXPECT_NE(LargeBlock(320)->data(), place);
  kill(child, SIGKILL);
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  auto one = LargeBlock(320), other = LargeBlock(320);
  EXPECT_TRUE(one->data() == place || other->data() == place);
  close(ready[0]);
  close(ready[1]);
}

TEST_F(WarmBlobTest, AnOldPathDoesNotOpenTheNewBytes) {
  auto first = LargeBlock(384);
  const std::string path = Blob::Share(first).local_path;
  const uint8_t* place = first->data();
  first.reset();
  auto second = LargeBlock(384);
  ASSERT_EQ(second->data(), place);
  EXPECT_EQ(Blob::Map(path, kLarge + 384).status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(Blob::Map(Blob::Share(second).local_path, kLarge + 384).ok());
}

TEST_F(WarmBlobTest, NothingIsKeptWhenMemoryIsShort) {
  auto first = LargeBlock(512);
  const std::string path = Blob::Share(first).local_path;
  first.reset();
  EXPECT_TRUE(Blob::Map(path, kLarge + 512).ok());
  EXPECT_EQ(MakeTooLarge().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(Blob::Map(path, kLarge + 512).status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(WarmBlobTest, NoMoreIsKeptThanTheLimit) {
  std::vector<std::shared_ptr<Blob>> blocks;
  const size_t size = kLarge * 64 + 448;
  const size_t count = limits::kWarmBlockBytes / size + 2;
  for (size_t i = 0; i < count; ++i) blocks.push_back(LargeBlock(size - kLarge));
  blocks.clear();
  size_t reused = 0;
  for (size_t i = 0; i < count; ++i) {
    blocks.push_back(LargeBlock(size - kLarge));
    const std::string path = Blob::Share(blocks.back()).local_path;
    if (path.ends_with(".0")) ++reused;  // was kept: its time is one of ours
  }
  EXPECT_EQ(reused, count - 2);
}

TEST(BlobTest, EmptyBlocksWork) {
  auto blob = Blob::Create(0);
  ASSERT_TRUE(blob.ok());
  auto mapped = Blob::Map(Blob::Share(*blob).local_path, 0);
  ASSERT_TRUE(mapped.ok()) << mapped.status();
  EXPECT_EQ(mapped->size, 0u);
  EXPECT_NE(mapped->data, nullptr);
}

TEST(BlobTest, MapsAPlainFileThatIsDeletedLater) {
  const std::string path = testing::TempDir() + "/bytes_test_" + std::to_string(getpid());
  std::ofstream(path) << "some bytes";
  auto mapped = Blob::Map(path, 10);
  EXPECT_EQ(Blob::Map(path, 11).status().code(), absl::StatusCode::kFailedPrecondition);
  unlink(path.c_str());
  ASSERT_TRUE(mapped.ok()) << mapped.status();
  auto again = Blob::Map(mapped->local_path, 10);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->view(), "some bytes");
}

TEST(BlobTest, WhatCannotBeMappedIsRefusedInWords) {
  for (const char* path : {"/no/such/file", "/dev/null", "/tmp", "", "/proc/self/fd/0#x"}) {
    const absl::Status status = Blob::Map(path, 1).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << path;
    EXPECT_NE(status.message().find(path), std::string::npos) << status;
  }
}

TEST(BlobTest, MoreThanTheMachineHas) {
  for (size_t size : {size_t{1} << 45, size_t{1} << 62, ~size_t{0}}) {
    EXPECT_EQ(Blob::Create(size).status().code(), absl::StatusCode::kResourceExhausted);
  }
}

}  // namespace
}  // namespace parkway
