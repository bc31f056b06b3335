#include "base/bytes.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <fstream>

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
