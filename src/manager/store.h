// What a manager must not forget when it is started anew, in a SQLite file of its state directory: who it is, which
// worker has which seat, which engines were given up, which leases there are and in which order they were asked for.
// What changes by itself (who is alive, which engines are up) is not written down: workers and proxies say it when they
// come back. A file that can't be read is set aside, and the manager begins as a new one.
//
// One thread at a time.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "proto/parkway/manager.pb.h"

struct sqlite3;

namespace parkway::manager {

class Store {
 public:
  // Makes the directory and the file when they aren't there. UNAVAILABLE when that can't be done, or when another
  // manager has the file open.
  static absl::StatusOr<std::unique_ptr<Store>> Open(const std::string& directory);
  ~Store();
  Store(const Store&) = delete;

  // As it was last saved; empty for a new one.
  const ManagerRecord& record() const { return record_; }
  // Writes what has changed since, in one transaction: it is there whole or not at all.
  absl::Status Save(const ManagerRecord& record);

 private:
  using Rows = std::map<std::string, std::string>;
  Store(sqlite3* db, std::string path) : db_(db), path_(std::move(path)) {}
  static absl::StatusOr<std::unique_ptr<Store>> OpenFile(const std::string& path);
  absl::Status Load();
  absl::Status Write(const Rows& rows);
  absl::Status Run(const char* sql);
  absl::Status Row(const char* sql, const std::string& key, const std::string* value);
  absl::Status Error(const std::string& what) const;

  sqlite3* db_;
  const std::string path_;
  Rows rows_;  // as they stand in the file
  ManagerRecord record_;
};

}  // namespace parkway::manager
