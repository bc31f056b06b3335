#include "manager/store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>

namespace parkway::manager {
namespace {

using ::testing::HasSubstr;

class StoreTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string path = ::testing::TempDir() + "/store-XXXXXX";
    ASSERT_NE(mkdtemp(path.data()), nullptr);
    directory_ = path + "/state";  // made by the store
  }
  void TearDown() override { std::filesystem::remove_all(directory_.substr(0, directory_.rfind('/'))); }
  std::unique_ptr<Store> Open() {
    absl::StatusOr<std::unique_ptr<Store>> store = Store::Open(directory_);
    EXPECT_TRUE(store.ok()) << store.status();
    return store.ok() ? *std::move(store) : nullptr;
  }
  static ManagerRecord Some(int leases) {
    ManagerRecord record;
    record.set_instance(77);
    record.set_starts(2);
    record.set_next_epoch(12);
    record.add_slices()->set_name("slice-1");
    record.add_slices()->set_name("slice-0");
    record.mutable_slices(1)->add_hosts()->set_worker("a");
    for (int i = 0; i < leases; ++i) {
      LeaseRecord& lease = *record.add_leases();
      lease.set_epoch(8 + i);
      lease.set_lease(1000 - i);
      lease.set_token(std::string("\0token", 6));
    }
    return record;
  }
  std::string directory_;
};

TEST_F(StoreTest, WhatWasSavedIsThereForTheNext) {
  EXPECT_EQ(Open()->record().SerializeAsString(), "");
  ASSERT_TRUE(Open()->Save(Some(3)).ok());
  EXPECT_EQ(Open()->record().DebugString(), Some(3).DebugString());
}

TEST_F(StoreTest, WhatIsGoneIsGone) {
  ASSERT_TRUE(Open()->Save(Some(3)).ok());
  ASSERT_TRUE(Open()->Save(Some(1)).ok());
  EXPECT_EQ(Open()->record().DebugString(), Some(1).DebugString());
}

TEST_F(StoreTest, TwoManagersDoNotShareAFile) {
  auto first = Open();
  ASSERT_TRUE(first->Save(Some(1)).ok());
  const absl::Status second = Store::Open(directory_).status();
  EXPECT_EQ(second.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(second.message(), HasSubstr("another --state_dir"));
}

TEST_F(StoreTest, AFileThatIsNoneIsSetAside) {
  std::filesystem::create_directory(directory_);
  std::ofstream(directory_ + "/manager.sqlite") << std::string(5000, 'x');
  auto store = Open();
  ASSERT_NE(store, nullptr);
  EXPECT_EQ(store->record().instance(), 0u);
  ASSERT_TRUE(store->Save(Some(1)).ok());
  EXPECT_TRUE(std::filesystem::exists(directory_ + "/manager.sqlite.unreadable"));
}

TEST_F(StoreTest, ADirectoryThatCannotBeMadeIsSaid) {
  EXPECT_THAT(Store::Open("/proc/none/state").status().message(), HasSubstr("/proc/none/state"));
}

}  // namespace
}  // namespace parkway::manager
