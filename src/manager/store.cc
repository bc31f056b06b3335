#include "manager/store.h"

#include <sqlite3.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status.h"
#include "glog/logging.h"

namespace parkway::manager {
namespace {

constexpr int kBusyMs = 2000;

// The record in rows, so that a change of one slice or lease writes that alone.
std::map<std::string, std::string> RowsOf(const ManagerRecord& record) {
  std::map<std::string, std::string> rows;
  ManagerRecord rest = record;
  rest.clear_slices();
  rest.clear_leases();
  rows["manager"] = rest.SerializeAsString();
  for (int i = 0; i < record.slices_size(); ++i) {
    rows[absl::StrFormat("slice %08d", i)] = record.slices(i).SerializeAsString();
  }
  for (const LeaseRecord& lease : record.leases()) {
    rows[absl::StrFormat("lease %020d", lease.epoch())] = lease.SerializeAsString();
  }
  return rows;
}

bool AddRow(const std::string& key, const std::string& value, ManagerRecord& record) {
  if (absl::StartsWith(key, "slice ")) return record.add_slices()->ParseFromString(value);
  if (absl::StartsWith(key, "lease ")) return record.add_leases()->ParseFromString(value);
  return key == "manager" && record.MergeFromString(value);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Store>> Store::Open(const std::string& directory) {
  if (mkdir(directory.c_str(), S_IRWXU) != 0 && errno != EEXIST) {
    return absl::UnavailableError(
        absl::StrCat("can't make the state directory ", directory, ": ", std::strerror(errno)));
  }
  const std::string path = absl::StrCat(directory, "/manager.sqlite");
  absl::StatusOr<std::unique_ptr<Store>> store = OpenFile(path);
  if (!absl::IsFailedPrecondition(store.status())) return store;
  const std::string aside = absl::StrCat(path, ".unreadable");
  LOG(ERROR) << store.status().message() << "; it is set aside as " << aside << ", and the manager begins anew.";
  if (std::rename(path.c_str(), aside.c_str()) != 0) {
    return absl::UnavailableError(absl::StrCat("can't rename ", path, ": ", std::strerror(errno)));
  }
  for (const char* suffix : {"-wal", "-shm"}) std::remove(absl::StrCat(path, suffix).c_str());
  return OpenFile(path);
}

absl::StatusOr<std::unique_ptr<Store>> Store::OpenFile(const std::string& path) {
  sqlite3* db = nullptr;
  const int opened = sqlite3_open_v2(path.c_str(), &db, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE, nullptr);
  std::unique_ptr<Store> store(new Store(db, path));
  if (opened != SQLITE_OK) return absl::UnavailableError(store->Error("open it").message());
  sqlite3_busy_timeout(db, kBusyMs);
  PARKWAY_RETURN_IF_ERROR(store->Load());
  return store;
}

Store::~Store() { sqlite3_close(db_); }

absl::Status Store::Error(const std::string& what) const {
  const int code = sqlite3_errcode(db_);
  const std::string words = absl::StrCat("the manager's file ", path_, ": can't ", what, ": ", sqlite3_errmsg(db_));
  if (code == SQLITE_BUSY || code == SQLITE_LOCKED) {
    return absl::UnavailableError(absl::StrCat(words, "; another manager uses it: give this one another --state_dir"));
  }
  if (code == SQLITE_NOTADB || code == SQLITE_CORRUPT) return absl::FailedPreconditionError(words);
  return absl::UnavailableError(words);
}

absl::Status Store::Run(const char* sql) {
  return sqlite3_exec(db_, sql, nullptr, nullptr, nullptr) == SQLITE_OK ? absl::OkStatus() : Error(sql);
}

absl::Status Store::Load() {
  // Exclusive: two managers on one file would each undo what the other wrote.
  PARKWAY_RETURN_IF_ERROR(Run("PRAGMA locking_mode = EXCLUSIVE"));
  PARKWAY_RETURN_IF_ERROR(Run("PRAGMA journal_mode = WAL"));
  PARKWAY_RETURN_IF_ERROR(Run("CREATE TABLE IF NOT EXISTS record (key TEXT PRIMARY KEY, value BLOB) WITHOUT ROWID"));
  sqlite3_stmt* select = nullptr;
  if (sqlite3_prepare_v2(db_, "SELECT key, value FROM record ORDER BY key", -1, &select, nullptr) != SQLITE_OK) {
    return Error("read it");
  }
  int step;
  bool sound = true;
  while ((step = sqlite3_step(select)) == SQLITE_ROW) {
    const std::string key(reinterpret_cast<const char*>(sqlite3_column_text(select, 0)),
                          static_cast<size_t>(sqlite3_column_bytes(select, 0)));
    const std::string value(static_cast<const char*>(sqlite3_column_blob(select, 1)),
                            static_cast<size_t>(sqlite3_column_bytes(select, 1)));
    sound &= AddRow(key, value, record_);
    rows_[key] = value;
  }
  sqlite3_finalize(select);
  if (step != SQLITE_DONE) return Error("read it");
  if (!sound) return absl::FailedPreconditionError(absl::StrCat("the manager's file ", path_, " is damaged"));
  return absl::OkStatus();
}

absl::Status Store::Save(const ManagerRecord& record) {
  const Rows rows = RowsOf(record);
  if (rows == rows_) return absl::OkStatus();
  PARKWAY_RETURN_IF_ERROR(Run("BEGIN IMMEDIATE"));
  absl::Status written = Write(rows);
  if (written.ok()) written = Run("COMMIT");
  if (!written.ok()) {
    Run("ROLLBACK").IgnoreError();  // the first error is the one to tell
    return written;
  }
  rows_ = rows;
  record_ = record;
  return absl::OkStatus();
}

absl::Status Store::Write(const Rows& rows) {
  for (const auto& [key, value] : rows_) {
    if (!rows.contains(key)) PARKWAY_RETURN_IF_ERROR(Row("DELETE FROM record WHERE key = ?1", key, nullptr));
  }
  for (const auto& [key, value] : rows) {
    const auto old = rows_.find(key);
    if (old != rows_.end() && old->second == value) continue;
    PARKWAY_RETURN_IF_ERROR(Row("INSERT OR REPLACE INTO record VALUES (?1, ?2)", key, &value));
  }
  return absl::OkStatus();
}

absl::Status Store::Row(const char* sql, const std::string& key, const std::string* value) {
  sqlite3_stmt* statement = nullptr;
  if (sqlite3_prepare_v2(db_, sql, -1, &statement, nullptr) != SQLITE_OK) return Error("write to it");
  sqlite3_bind_text(statement, 1, key.data(), static_cast<int>(key.size()), SQLITE_STATIC);
  if (value != nullptr) sqlite3_bind_blob64(statement, 2, value->data(), value->size(), SQLITE_STATIC);
  const bool done = sqlite3_step(statement) == SQLITE_DONE;
  const absl::Status status = done ? absl::OkStatus() : Error("write to it");
  sqlite3_finalize(statement);
  return status;
}

}  // namespace parkway::manager
