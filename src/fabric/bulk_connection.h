// One TCP connection of bulk transfers, either end. Messages have a fixed header; bytes of arrays are written from
// where they lie and read to where they belong. Several streams share a connection in turns of limits::kBulkChunkBytes,
// so that a large one doesn't hold up a small one. Everything happens on the loop's thread.
#pragma once

#include <sys/uio.h>

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/bytes.h"
#include "fabric/loop.h"
#include "fabric/socket.h"

namespace parkway::fabric {

enum class BulkKind : uint16_t {
  kPull = 1,     // puller: the bytes of transfer `value`; payload: the puller's machine, empty for "no local path"
  kCancel = 2,   // puller: no more of stream `tag`
  kLocal = 3,    // owner: `value` bytes lie at the path in the payload
  kStart = 4,    // owner: `value` bytes follow; payload: the first of them
  kChunk = 5,    // owner: more bytes of `tag`
  kRefused = 6,  // owner: a status of `code`; payload: its message
};

// As on the wire: little-endian.
struct BulkHeader {
  static constexpr uint32_t kMagic = 0x31424B50;  // "PKB1"
  uint32_t magic = kMagic;
  BulkKind kind{};
  uint16_t code = 0;
  uint64_t tag = 0;  // chosen by the puller; replies repeat it
  uint64_t value = 0;
  uint64_t length = 0;  // of the payload
};
static_assert(sizeof(BulkHeader) == 32 && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__);

class BulkConnection : public std::enable_shared_from_this<BulkConnection> {
 public:
  class Handler {
   public:
    virtual ~Handler() = default;
    // Where the payload of a kStart or kChunk goes; null: nowhere. It must stay there until OnMessage, or for null not
    // at all. An error closes the connection.
    virtual absl::StatusOr<uint8_t*> Place(const BulkHeader& header) = 0;
    // A message has come whole; `payload` is empty where Place took it.
    virtual absl::Status OnMessage(const BulkHeader& header, std::string_view payload) = 0;
    // The last call, once; not after Close.
    virtual void OnClosed(absl::Status why) = 0;
  };

  // `slot` is kept as long as the connection.
  BulkConnection(std::shared_ptr<Loop> loop, UniqueFd fd, std::string peer, std::shared_ptr<void> slot);
  ~BulkConnection();

  void Start(Handler* handler);
  void Close();

  // `header.length` is set from the payload.
  void Send(BulkHeader header, std::string payload = {});
  void Stream(uint64_t tag, Bytes bytes);
  void StopStream(uint64_t tag);
  // The place that was given for bytes of `tag` is gone: what is still to come of them goes nowhere.
  void DropPlace(uint64_t tag);

  size_t streams() const { return streams_.size(); }
  // True when something has waited to be written for `limit` without a byte leaving.
  bool Stalled(absl::Time now, absl::Duration limit) const;
  const std::string& peer() const { return peer_; }

 private:
  struct OutStream {
    uint64_t tag;
    Bytes bytes;
    size_t sent = 0;
    bool started = false;
  };
  // What is being written: a header and its payload.
  struct Unit {
    BulkHeader header;
    std::string text;  // the payload, or
    Bytes bytes;       // the payload's owner
    const char* data = nullptr;
    size_t written = 0;
    size_t size() const { return sizeof(header) + header.length; }
  };
  enum class Progress { kMore, kBlocked, kFailed };

  bool NextUnit();
  void SchedulePump();
  void Pump();
  Progress WriteOnce();
  void WaitWritable();

  void WaitReadable();
  void OnReadable();
  iovec Destination();
  Progress ReadOnce();
  absl::Status TakeHeader();
  absl::Status TakePayload();
  void Fail(absl::Status why);

  const std::shared_ptr<Loop> loop_;
  UniqueFd fd_;
  const std::string peer_;
  const std::shared_ptr<void> slot_;
  asio::posix::stream_descriptor descriptor_;
  Handler* handler_ = nullptr;  // null once closed

  std::deque<Unit> messages_;
  std::deque<OutStream> streams_;
  Unit unit_;
  bool has_unit_ = false;
  bool writing_ = false;  // Pump is scheduled, or waits for room
  absl::Time last_write_;

  BulkHeader header_;
  size_t header_read_ = 0;
  size_t payload_read_ = 0;
  uint8_t* place_ = nullptr;  // of the payload, unless it is thrown away
  bool discard_ = false;
  std::string text_;
};

}  // namespace parkway::fabric
