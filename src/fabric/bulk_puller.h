// The pulling side of bulk transfers: one connection for each owner, kept and shared by all pulls from it. Everything
// happens on the loop's thread.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "base/bytes.h"
#include "fabric/bulk.h"
#include "fabric/bulk_connection.h"

namespace parkway::fabric {

// All pulls from one owner.
class BulkOwner : public BulkConnection::Handler, public std::enable_shared_from_this<BulkOwner> {
 public:
  using Done = Bulk::Done;

  BulkOwner(std::shared_ptr<Loop> loop, std::string endpoint, BulkOptions options);

  void Connect();
  void Pull(uint64_t id, uint64_t size, Done done);
  void Sweep(absl::Time now);
  void CloseAll(const absl::Status& why);
  bool closed() const { return closed_; }

  absl::StatusOr<uint8_t*> Place(const BulkHeader& header) override;
  absl::Status OnMessage(const BulkHeader& header, std::string_view payload) override;
  void OnClosed(absl::Status why) override;

 private:
  struct Pulling {
    uint64_t id;
    uint64_t size;
    Done done;
    std::shared_ptr<Blob> blob;  // once the first bytes come
    uint64_t placed = 0;         // bytes whose place was given out
    uint64_t received = 0;
    absl::Time progress;
  };

  void Request(uint64_t tag, const Pulling& pulling, bool local);
  void MapLocal(uint64_t tag, Pulling& pulling, uint64_t size, const std::string& path);
  void Finish(uint64_t tag, absl::StatusOr<Bytes> result);
  // Tells the owner to stop as well.
  void GiveUp(uint64_t tag, const absl::Status& why);

  const std::shared_ptr<Loop> loop_;
  const std::string endpoint_;
  const BulkOptions options_;
  std::shared_ptr<BulkConnection> connection_;  // null while connecting
  bool closed_ = false;
  std::map<uint64_t, Pulling> pulls_;  // by tag
  uint64_t next_tag_ = 1;
};

class BulkPuller {
 public:
  BulkPuller(std::shared_ptr<Loop> loop, BulkOptions options) : loop_(std::move(loop)), options_(options) {}
  void Pull(const std::string& endpoint, uint64_t id, uint64_t size, Bulk::Done done);
  void Sweep(absl::Time now);
  void CloseAll(const absl::Status& why);

 private:
  const std::shared_ptr<Loop> loop_;
  const BulkOptions options_;
  absl::flat_hash_map<std::string, std::shared_ptr<BulkOwner>> owners_;
};

}  // namespace parkway::fabric
