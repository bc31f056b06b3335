#include "proxy/host_buffers.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>

#include "base/limits.h"
#include "proxy/transfer_directory.h"
#include "proxy/version.h"

namespace parkway::proxy {
namespace {

using testing::HasSubstr;

absl::StatusOr<Bytes> Value(const runtime::PendingBytesRef& pending) {
  absl::StatusOr<Bytes> result = absl::UnknownError("pending");
  if (pending->is_set()) pending->When([&](const absl::StatusOr<Bytes>& bytes) { result = bytes; });
  return result;
}

TEST(HostBuffers, MeetInEitherOrder) {
  HostBuffers buffers;
  const absl::Time now = absl::UnixEpoch();
  auto taken = buffers.Take(1, now);
  EXPECT_EQ(*buffers.Start(1, 10, now), taken);
  auto started = *buffers.Start(2, 10, now);
  EXPECT_EQ(buffers.bytes_held(), 10);
  EXPECT_EQ(buffers.Take(2, now), started);
  EXPECT_EQ(buffers.bytes_held(), 0);
}

TEST(HostBuffers, ABufferIsStoredAndTakenOnce) {
  HostBuffers buffers;
  const absl::Time now = absl::UnixEpoch();
  ASSERT_TRUE(buffers.Start(1, 10, now).ok());
  EXPECT_EQ(buffers.Start(1, 10, now).status().code(), absl::StatusCode::kInvalidArgument);
  auto first = buffers.Take(7, now);
  EXPECT_EQ(Value(buffers.Take(7, now)).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_FALSE(first->is_set());
}

TEST(HostBuffers, AbsurdSizesAreRefusedOnBothSides) {
  HostBuffers buffers;
  for (int64_t size : {int64_t{1} << 62, int64_t{-1}, limits::kMaxHostBufferBytes + 1}) {
    auto waiting = buffers.Take(1, absl::UnixEpoch());
    EXPECT_EQ(buffers.Start(1, size, absl::UnixEpoch()).status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(Value(waiting).status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(buffers.Start(2, size, absl::UnixEpoch()).status().code(), absl::StatusCode::kInvalidArgument);
  }
  EXPECT_EQ(buffers.bytes_held(), 0);
}

TEST(HostBuffers, WhatNoRequestNamesIsLimited) {
  HostBuffers buffers;
  ASSERT_TRUE(buffers.Start(1, limits::kUnclaimedHostBytes, absl::UnixEpoch()).ok());
  EXPECT_EQ(buffers.Start(2, 1, absl::UnixEpoch()).status().code(), absl::StatusCode::kResourceExhausted);
  buffers.Take(1, absl::UnixEpoch());
  EXPECT_TRUE(buffers.Start(2, 1, absl::UnixEpoch()).ok());
}

TEST(HostBuffers, BytesThatNeverComeFailTheirArray) {
  HostBuffers buffers;
  auto overdue = buffers.Take(1, absl::UnixEpoch());
  auto in_time = buffers.Take(2, absl::UnixEpoch() + absl::Seconds(10));
  buffers.FailOverdue(absl::UnixEpoch() + absl::Seconds(5));
  EXPECT_THAT(std::string(Value(overdue).status().message()), HasSubstr("host buffer 1 never came"));
  EXPECT_FALSE(in_time->is_set());
}

TEST(HostBuffers, WhatIsReadIsFetchedBeforeOrAfterItIsThere) {
  HostBuffers buffers;
  std::vector<std::string> got;
  auto then = [&](const absl::StatusOr<Bytes>& bytes) {
    got.emplace_back(bytes.ok() ? std::string(bytes->view()) : std::string(bytes.status().message()));
  };
  ASSERT_TRUE(buffers.Promise(1).ok());
  EXPECT_THAT(std::string(buffers.Promise(1).message()), HasSubstr("in use"));
  EXPECT_EQ(buffers.promised(), 1);
  buffers.Fetch(1, then);
  EXPECT_TRUE(got.empty());
  buffers.Fetch(1, then);
  ASSERT_TRUE(buffers.Offer(1, Bytes::OfString("abc")).ok());
  buffers.Fetch(1, then);
  EXPECT_THAT(got, testing::ElementsAre(HasSubstr("being fetched"), "abc", "abc"));
  EXPECT_EQ(buffers.bytes_held(), 3);
  buffers.Delete(1);
  EXPECT_EQ(buffers.bytes_held(), 0);
  buffers.Fetch(1, then);
  EXPECT_THAT(got.back(), HasSubstr("no host buffer 1"));

  ASSERT_TRUE(buffers.Promise(2).ok());
  buffers.Fetch(2, then);
  EXPECT_FALSE(buffers.Offer(2, absl::AbortedError("lost")).ok());
  EXPECT_EQ(got.back(), "lost");
  ASSERT_TRUE(buffers.Promise(3).ok());
  buffers.Fetch(3, then);
  buffers.Delete(3);
  EXPECT_THAT(got.back(), HasSubstr("was deleted"));
  ASSERT_TRUE(buffers.Offer(3, Bytes::OfString("late")).ok());
  EXPECT_EQ(buffers.promised(), 0);
  EXPECT_EQ(buffers.bytes_held(), 0);
}

TEST(HostBuffers, TheEndOfASessionFailsAllAndFreesAll) {
  HostBufferTable table;
  auto [id, buffers] = *table.Open();
  auto waiting = buffers->Take(1, absl::UnixEpoch());
  ASSERT_TRUE(buffers->Promise(2).ok());
  ASSERT_TRUE(buffers->Offer(2, Bytes::OfString("abc")).ok());
  ASSERT_TRUE(buffers->Promise(4).ok());
  absl::Status fetched;
  buffers->Fetch(4, [&](const absl::StatusOr<Bytes>& bytes) { fetched = bytes.status(); });
  EXPECT_EQ(*table.Find(id), buffers);
  table.Close(id, absl::CancelledError("gone"));
  EXPECT_EQ(Value(waiting).status(), absl::CancelledError("gone"));
  EXPECT_EQ(fetched, absl::CancelledError("gone"));
  EXPECT_EQ(buffers->promised(), 0);
  EXPECT_EQ(buffers->bytes_held(), 0);
  EXPECT_EQ(table.Find(id).status().code(), absl::StatusCode::kPermissionDenied);
  EXPECT_FALSE(buffers->Start(3, 1, absl::UnixEpoch()).ok());
  EXPECT_FALSE(Value(buffers->Take(3, absl::UnixEpoch())).ok());
}

TEST(HostBufferTable, IdsCantBeGuessedAndAreLimited) {
  HostBufferTable table;
  std::vector<uint64_t> ids;
  for (int i = 0; i < limits::kMaxSessionsPerProxy; ++i) ids.push_back(table.Open()->first);
  EXPECT_EQ(table.Open().status().code(), absl::StatusCode::kResourceExhausted);
  int large = 0;
  for (uint64_t id : ids) large += id > (uint64_t{1} << 32);
  EXPECT_GT(large, limits::kMaxSessionsPerProxy - 10);
  EXPECT_EQ(table.Find(1).status().code(), absl::StatusCode::kPermissionDenied);
}

TEST(StoreWriter, TakesExactlyWhatWasAnnounced) {
  const std::string large(200'000, 'x');
  const auto* data = reinterpret_cast<const uint8_t*>(large.data());
  for (size_t size : {size_t{0}, size_t{5}, large.size()}) {
    StoreWriter exact(static_cast<int64_t>(size));
    ASSERT_TRUE(exact.Append(data, size / 2).ok());
    ASSERT_TRUE(exact.Append(data, size - size / 2).ok());
    EXPECT_EQ(exact.Finish()->size, size);
    StoreWriter more(static_cast<int64_t>(size));
    ASSERT_TRUE(more.Append(data, size).ok());
    EXPECT_EQ(more.Append(data, 1).code(), absl::StatusCode::kInvalidArgument);
    StoreWriter less(static_cast<int64_t>(size) + 1);
    ASSERT_TRUE(less.Append(data, size).ok());
    EXPECT_EQ(less.Finish().status().code(), absl::StatusCode::kInvalidArgument);
  }
  // Large ones lie in shared memory that others can map.
  StoreWriter shared(static_cast<int64_t>(large.size()));
  ASSERT_TRUE(shared.Append(data, large.size()).ok());
  Bytes bytes = *shared.Finish();
  EXPECT_EQ(Blob::Map(bytes.local_path, bytes.size)->view(), large);
}

TEST(Version, TheHighestThatBothKnow) {
  VersionCaps caps;
  auto version = Negotiate(caps, {16, 25}, {2, 6});
  EXPECT_EQ(version->protocol, 25);
  EXPECT_EQ(version->serdes, 6);
  EXPECT_EQ(Negotiate(caps, {16, 30}, {0, 3})->serdes, 3);
  caps.protocol.max = 20;
  EXPECT_EQ(Negotiate(caps, {16, 25}, {2, 6})->protocol, 20);
}

TEST(Version, NeverOneOutsideTheClientsRange) {
  const VersionCaps caps;
  for (auto [min, max] : {std::pair(1, 15), std::pair(26, 40), std::pair(5, 3), std::pair(0, 0), std::pair(-5, -1)}) {
    EXPECT_EQ(Negotiate(caps, {min, max}, {2, 6}).status().code(), absl::StatusCode::kFailedPrecondition);
  }
  EXPECT_EQ(Negotiate(caps, {16, 25}, {0, 2}).status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_FALSE(CheckVersion(caps, {26, 6}).ok());
  EXPECT_TRUE(CheckVersion(caps, {16, 3}).ok());
}

class TransferDirectoryTest : public testing::Test {
 protected:
  TransferDirectoryTest() {
    char name[] = "/tmp/parkway_transfer_XXXXXX";
    path_ = mkdtemp(name);
    directory_ = *TransferDirectory::Open(path_);
  }
  ~TransferDirectoryTest() override { std::system(("rm -rf " + path_).c_str()); }
  std::string Write(const std::string& name, const std::string& bytes) {
    std::ofstream(path_ + "/" + name) << bytes;
    return path_ + "/" + name;
  }
  static bool Exists(const std::string& path) {
    struct stat st;
    return lstat(path.c_str(), &st) == 0;
  }

  std::string path_;
  std::unique_ptr<TransferDirectory> directory_;
};

TEST_F(TransferDirectoryTest, TakesTheFileAway) {
  const std::string file = Write("lt_7", "hello");
  Bytes bytes = *directory_->Take(7, 5);
  EXPECT_EQ(bytes.view(), "hello");
  EXPECT_FALSE(Exists(file));
  EXPECT_EQ(Blob::Map(bytes.local_path, 5)->view(), "hello") << "an engine can map it";
}

TEST_F(TransferDirectoryTest, AFileThatSomebodyMayStillWriteIsCopied) {
  const std::string file = Write("lt_7", "hello");
  const int writer = open(file.c_str(), O_WRONLY);
  Bytes bytes = *directory_->Take(7, 5);
  ASSERT_EQ(ftruncate(writer, 0), 0);
  close(writer);
  EXPECT_EQ(bytes.view(), "hello");
}

TEST_F(TransferDirectoryTest, RefusesAllElse) {
  EXPECT_EQ(directory_->Take(7, 5).status().code(), absl::StatusCode::kFailedPrecondition) << "no file";
  Write("lt_8", "hello");
  EXPECT_EQ(directory_->Take(8, 6).status().code(), absl::StatusCode::kInvalidArgument) << "another size";
  EXPECT_EQ(directory_->Take(8, 5).status().code(), absl::StatusCode::kFailedPrecondition) << "refused once";
  const std::string secret = Write("secret", "hello");
  ASSERT_EQ(symlink(secret.c_str(), (path_ + "/lt_9").c_str()), 0);
  EXPECT_EQ(directory_->Take(9, 5).status().code(), absl::StatusCode::kFailedPrecondition) << "symbolic link";
  ASSERT_EQ(link(secret.c_str(), (path_ + "/lt_10").c_str()), 0);
  EXPECT_EQ(directory_->Take(10, 5).status().code(), absl::StatusCode::kFailedPrecondition) << "hard link";
  ASSERT_EQ(mkdir((path_ + "/lt_11").c_str(), 0700), 0);
  EXPECT_EQ(directory_->Take(11, 5).status().code(), absl::StatusCode::kFailedPrecondition) << "directory";
  ASSERT_EQ(mkfifo((path_ + "/lt_12").c_str(), 0600), 0);
  EXPECT_EQ(directory_->Take(12, 0).status().code(), absl::StatusCode::kFailedPrecondition) << "pipe";
  EXPECT_TRUE(Exists(secret));
  EXPECT_FALSE(TransferDirectory::Open(path_ + "/absent").ok());
}

}  // namespace
}  // namespace parkway::proxy
