#include "fabric/bulk.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <future>
#include <thread>
#include <vector>

#include "base/machine.h"
#include "base/subprocess.h"
#include "fabric/bulk_connection.h"
#include "fabric/link.h"
#include "fabric/socket.h"

namespace parkway::fabric {
namespace {

std::string Pattern(size_t size, int seed = 1) {
  std::string text(size, '\0');
  for (size_t i = 0; i < size; ++i) text[i] = static_cast<char>((i * 2654435761u + static_cast<size_t>(seed)) >> 13);
  return text;
}

std::unique_ptr<Bulk> MakeBulk(Fabric& fabric, BulkOptions options = {}) {
  auto bulk = Bulk::Create(fabric, "127.0.0.1", options);
  EXPECT_TRUE(bulk.ok()) << bulk.status();
  return *std::move(bulk);
}

std::future<absl::StatusOr<Bytes>> Fetch(Bulk& bulk, const Transfer& transfer) {
  auto promise = std::make_shared<std::promise<absl::StatusOr<Bytes>>>();
  auto future = promise->get_future();
  bulk.Fetch(transfer, [promise](absl::StatusOr<Bytes> bytes) { promise->set_value(std::move(bytes)); });
  return future;
}

Transfer TransferFrom(const std::string& endpoint, uint64_t id, uint64_t size) {
  Transfer transfer;
  transfer.set_id(id);
  transfer.set_size(size);
  transfer.set_endpoint(endpoint);
  return transfer;
}

// A socket of the other side, without any of our code.
class RawPeer {
 public:
  explicit RawPeer(const std::string& endpoint) : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    const auto parsed = ParseAddress(endpoint);
    sockaddr_in in{};
    in.sin_family = AF_INET;
    in.sin_port = htons(static_cast<uint16_t>(std::stoi(parsed->port)));
    inet_pton(AF_INET, parsed->host.c_str(), &in.sin_addr);
    EXPECT_EQ(connect(fd_.get(), reinterpret_cast<sockaddr*>(&in), sizeof(in)), 0);
  }
  explicit RawPeer(const ListeningSocket& listening) : fd_(accept(listening.fd.get(), nullptr, nullptr)) {}

  void Send(BulkHeader header, const std::string& payload) { SendBytes(Encode(header, payload)); }
  // To one who may have closed already.
  void SendIfOpen(BulkHeader header, const std::string& payload) {
    const std::string bytes = Encode(header, payload);
    (void)!send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
  }
  void SendBytes(const std::string& bytes) {
    ASSERT_EQ(send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL), static_cast<ssize_t>(bytes.size()));
  }
  BulkHeader ReadHeader(std::string* payload) {
    BulkHeader header;
    EXPECT_EQ(recv(fd_.get(), &header, sizeof(header), MSG_WAITALL), static_cast<ssize_t>(sizeof(header)));
    payload->resize(header.length);
    if (header.length > 0) {
      EXPECT_EQ(recv(fd_.get(), payload->data(), payload->size(), MSG_WAITALL), static_cast<ssize_t>(payload->size()));
    }
    return header;
  }
  // Blocks until the other side has closed.
  void WaitClosed() {
    char buffer[4096];
    while (recv(fd_.get(), buffer, sizeof(buffer), 0) > 0) {
    }
  }

 private:
  static std::string Encode(BulkHeader header, const std::string& payload) {
    header.length = payload.size();
    return std::string(reinterpret_cast<const char*>(&header), sizeof(header)) + payload;
  }

  UniqueFd fd_;
};

BulkHeader Header(BulkKind kind, uint64_t tag, uint64_t value) {
  BulkHeader header;
  header.kind = kind;
  header.tag = tag;
  header.value = value;
  return header;
}

TEST(BulkTest, LocalBytesAreMappedNotCopied) {
  Fabric fabric;
  auto owner = MakeBulk(fabric), puller = MakeBulk(fabric);
  auto blob = Blob::Create(64 << 20);
  ASSERT_TRUE(blob.ok());
  const std::string text = Pattern(64 << 20);
  std::memcpy((*blob)->data(), text.data(), text.size());
  Transfer transfer = owner->Offer(Blob::Share(*blob));
  EXPECT_EQ(transfer.size(), text.size());
  for (bool path_in_transfer : {true, false}) {
    if (!path_in_transfer) transfer.clear_local_path();  // as of a promised id: the owner's answer names it
    const auto got = Fetch(*puller, transfer).get();
    ASSERT_TRUE(got.ok()) << got.status();
    EXPECT_TRUE(got->view() == text);
    (*blob)->data()[5] ^= 1;
    EXPECT_EQ(got->data[5], (*blob)->data()[5]);  // the same memory
    (*blob)->data()[5] ^= 1;
  }
}

TEST(BulkTest, BytesWithoutAPathAreStreamed) {
  Fabric fabric;
  auto owner = MakeBulk(fabric), puller = MakeBulk(fabric);
  for (size_t size : {size_t{0}, size_t{1}, limits::kBulkChunkBytes, limits::kBulkChunkBytes + 1, size_t{64} << 20}) {
    const std::string text = Pattern(size);
    const auto got = Fetch(*puller, owner->Offer(Bytes::OfString(text))).get();
    ASSERT_TRUE(got.ok()) << got.status();
    EXPECT_TRUE(got->view() == text) << size;
    EXPECT_FALSE(got->local_path.empty());  // it can be handed on
    EXPECT_EQ(reinterpret_cast<uintptr_t>(got->data) % 64, 0u);
  }
}

TEST(BulkTest, PullsFromItself) {
  Fabric fabric;
  auto bulk = MakeBulk(fabric);
  EXPECT_EQ(Fetch(*bulk, bulk->Offer(Bytes::OfString("abc"))).get()->view(), "abc");
}

TEST(BulkTest, StreamsWhenThePathCannotBeMapped) {
  Fabric fabric;
  auto owner = MakeBulk(fabric), puller = MakeBulk(fabric);
  Bytes bytes = Bytes::OfString("abc");
  bytes.local_path = "/no/such/path";
  const auto got = Fetch(*puller, owner->Offer(bytes)).get();
  ASSERT_TRUE(got.ok()) << got.status();
  EXPECT_EQ(got->view(), "abc");
}

TEST(BulkTest, PromisedBytesAreWaitedFor) {
  Fabric fabric;
  auto owner = MakeBulk(fabric), puller = MakeBulk(fabric);
  auto early = Fetch(*puller, TransferFrom(owner->endpoint(), 77, 5));
  auto failing = Fetch(*puller, TransferFrom(owner->endpoint(), 78, 5));
  // A later pull over the same connection is not held up by those that wait.
  EXPECT_EQ(Fetch(*puller, owner->Offer(Bytes::OfString("later"))).get()->view(), "later");
  EXPECT_EQ(early.wait_for(std::chrono::seconds(0)), std::future_status::timeout);
  owner->Fulfil(77, Bytes::OfString("hello"));
  EXPECT_EQ(early.get()->view(), "hello");
  EXPECT_EQ(Fetch(*puller, TransferFrom(owner->endpoint(), 77, 5)).get()->view(), "hello");  // again, until dropped
  owner->Fail(78, absl::DataLossError("slice 1 was lost"));
  const absl::Status status = failing.get().status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_NE(status.message().find("slice 1 was lost"), std::string::npos) << status;
  EXPECT_EQ(Fetch(*puller, TransferFrom(owner->endpoint(), 78, 5)).get().status().code(), absl::StatusCode::kDataLoss);
}

TEST(BulkTest, APromiseThatIsNotKeptEnds) {
  Fabric fabric;
  auto owner = MakeBulk(fabric, {.wait = absl::Milliseconds(50)});
  auto puller = MakeBulk(fabric);
  const absl::Status status = Fetch(*puller, TransferFrom(owner->endpoint(), 99, 5)).get().status();
  EXPECT_EQ(status.code(), absl::StatusCode::kAborted);
  EXPECT_NE(status.message().find(owner->endpoint()), std::string::npos) << status;
}

TEST(BulkTest, DroppedBytesAreFreedAndRefused) {
  Fabric fabric;
  auto owner = MakeBulk(fabric), puller = MakeBulk(fabric);
  auto held = std::make_shared<std::string>("abc");
  Bytes bytes;
  bytes.data = reinterpret_cast<const uint8_t*>(held->data());
  bytes.size = 3;
  bytes.owner = held;
  const Transfer transfer = owner->Offer(bytes);
  bytes.owner.reset();
  EXPECT_EQ(held.use_count(), 2);
  owner->Drop(transfer.id());
  EXPECT_EQ(held.use_count(), 1);
  EXPECT_EQ(Fetch(*puller, transfer).get().status().code(), absl::StatusCode::kAborted);

  auto waiting = Fetch(*puller, TransferFrom(owner->endpoint(), 5, 3));
  EXPECT_EQ(Fetch(*puller, owner->Offer(Bytes::OfString("x"))).get()->view(), "x");  // so the one before has arrived
  owner->Drop(5);
  EXPECT_EQ(waiting.get().status().code(), absl::StatusCode::kAborted);
  bytes.owner = held;
  owner->Fulfil(5, bytes);  // too late: nobody would ever drop it
  bytes.owner.reset();
  EXPECT_EQ(held.use_count(), 1);
}

TEST(BulkTest, AnotherSizeThanAnnouncedIsRefused) {
  Fabric fabric;
  auto owner = MakeBulk(fabric), puller = MakeBulk(fabric);
  Transfer transfer = owner->Offer(Bytes::OfString(Pattern(3 << 20)));
  transfer.set_size(2 << 20);
  EXPECT_EQ(Fetch(*puller, transfer).get().status().code(), absl::StatusCode::kAborted);
  transfer.set_size(3 << 20);
  EXPECT_TRUE(Fetch(*puller, transfer).get().ok());  // the connection goes on
}

TEST(BulkTest, ManyAtOnceOverOneConnection) {
  Fabric a, b;
  auto owner = MakeBulk(a), puller = MakeBulk(b);
  std::vector<std::string> texts;
  for (int i = 0; i < 200; ++i) texts.push_back(Pattern(static_cast<size_t>(i) * 9973, i));
  std::vector<std::jthread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      std::vector<std::future<absl::StatusOr<Bytes>>> futures;
      for (int i = t; i < 200; i += 4) {
        Transfer transfer = owner->Offer(Bytes::OfString(texts[i]));
        futures.push_back(Fetch(*puller, transfer));
      }
      for (int i = t, k = 0; i < 200; i += 4, ++k) {
        const auto got = futures[k].get();
        ASSERT_TRUE(got.ok()) << got.status();
        EXPECT_TRUE(got->view() == texts[i]);
      }
    });
  }
}

TEST(BulkTest, NobodyThere) {
  Fabric fabric;
  auto puller = MakeBulk(fabric);
  std::string endpoint;
  {
    auto gone = MakeBulk(fabric);
    endpoint = gone->endpoint();
  }
  const absl::Status status = Fetch(*puller, TransferFrom(endpoint, 1, 1)).get().status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_NE(status.message().find(endpoint), std::string::npos) << status;
  EXPECT_EQ(Fetch(*puller, TransferFrom("", 1, 1)).get().status().code(), absl::StatusCode::kUnavailable);
}

TEST(BulkTest, ConnectsAgainToAnOwnerThatCameBack) {
  Fabric fabric;
  auto puller = MakeBulk(fabric);
  auto owner = MakeBulk(fabric);
  const std::string endpoint = owner->endpoint();
  ASSERT_TRUE(Fetch(*puller, owner->Offer(Bytes::OfString("1"))).get().ok());
  auto waiting = Fetch(*puller, TransferFrom(endpoint, 4, 1));
  owner.reset();
  EXPECT_EQ(waiting.get().status().code(), absl::StatusCode::kUnavailable);
  auto again = Bulk::Create(fabric, endpoint);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(Fetch(*puller, (*again)->Offer(Bytes::OfString("2"))).get()->view(), "2");
}

TEST(BulkTest, GarbageClosesItsConnectionOnly) {
  Fabric fabric;
  auto owner = MakeBulk(fabric), puller = MakeBulk(fabric);
  const Transfer transfer = owner->Offer(Bytes::OfString("fine"));
  ASSERT_TRUE(Fetch(*puller, transfer).get().ok());
  BulkHeader huge = Header(BulkKind::kPull, 1, 1);
  huge.length = ~uint64_t{0};
  const std::string bad_length(reinterpret_cast<const char*>(&huge), sizeof(huge));
  for (const std::string& garbage : {std::string("GET / HTTP/1.1\r\nHost: somewhere.example\r\n\r\n"), bad_length,
                                     std::string(1000, '\0'), std::string(1000, '\xff')}) {
    RawPeer raw(owner->endpoint());
    raw.SendBytes(garbage);
    raw.WaitClosed();
  }
  for (BulkKind kind :
       {BulkKind::kStart, BulkKind::kChunk, BulkKind::kLocal, BulkKind::kRefused, BulkKind{0}, BulkKind{99}}) {
    RawPeer raw(owner->endpoint());
    raw.Send(Header(kind, 1, 1), "x");
    raw.WaitClosed();
  }
  {
    RawPeer half(owner->endpoint());
    half.SendBytes("PKB1\x01");
  }
  EXPECT_EQ(Fetch(*puller, transfer).get()->view(), "fine");
}

TEST(BulkTest, ASlowPullerHoldsUpNobodyAndIsDropped) {
  Fabric fabric;
  auto owner = MakeBulk(fabric, {.stall = absl::Milliseconds(300)});
  auto puller = MakeBulk(fabric);
  auto held = std::make_shared<std::string>(Pattern(64 << 20));
  Bytes bytes;
  bytes.data = reinterpret_cast<const uint8_t*>(held->data());
  bytes.size = held->size();
  bytes.owner = held;
  const Transfer transfer = owner->Offer(bytes);
  bytes.owner.reset();
  RawPeer slow(owner->endpoint());
  for (uint64_t tag = 1; tag <= 8; ++tag) slow.Send(Header(BulkKind::kPull, tag, transfer.id()), "");
  const auto got = Fetch(*puller, transfer).get();
  ASSERT_TRUE(got.ok()) << got.status();
  EXPECT_TRUE(got->view() == *held);
  owner->Drop(transfer.id());
  while (held.use_count() > 1) std::this_thread::sleep_for(std::chrono::milliseconds(5));  // until it is given up
}

// An owner that the test plays itself.
struct FakeOwner {
  FakeOwner() : listening(*ListenOn("127.0.0.1:0")) {}
  uint64_t AcceptPull() {
    peer = std::make_unique<RawPeer>(listening);
    std::string machine;
    const BulkHeader header = peer->ReadHeader(&machine);
    EXPECT_EQ(header.kind, BulkKind::kPull);
    EXPECT_EQ(machine, MachineIdentity());
    return header.tag;
  }
  ListeningSocket listening;
  std::unique_ptr<RawPeer> peer;
};

TEST(BulkTest, AStalledTransferFails) {
  Fabric fabric;
  auto puller = MakeBulk(fabric, {.wait = absl::ZeroDuration(), .stall = absl::Seconds(1)});
  FakeOwner owner;
  auto silent = Fetch(*puller, TransferFrom(owner.listening.address, 1, 100));
  owner.AcceptPull();
  EXPECT_EQ(silent.get().status().code(), absl::StatusCode::kAborted);
  auto stalled = Fetch(*puller, TransferFrom(owner.listening.address, 2, 100));
  std::string payload;
  EXPECT_EQ(owner.peer->ReadHeader(&payload).kind, BulkKind::kCancel);  // of the first
  const BulkHeader pull = owner.peer->ReadHeader(&payload);
  owner.peer->Send(Header(BulkKind::kStart, pull.tag, 100), "half");
  const absl::Status status = stalled.get().status();
  EXPECT_EQ(status.code(), absl::StatusCode::kAborted);
  EXPECT_NE(status.message().find("4 came before"), std::string::npos) << status;
  EXPECT_EQ(owner.peer->ReadHeader(&payload).kind, BulkKind::kCancel);
  // What still comes is thrown away, and the connection is good for more.
  owner.peer->Send(Header(BulkKind::kChunk, pull.tag, 100), std::string(96, 'x'));
  auto fine = Fetch(*puller, TransferFrom(owner.listening.address, 3, 4));
  owner.peer->Send(Header(BulkKind::kStart, owner.peer->ReadHeader(&payload).tag, 4), "done");
  EXPECT_EQ(fine.get()->view(), "done");
}

TEST(BulkTest, TheRestOfAChunkThatStalledGoesNowhere) {
  constexpr size_t kSize = 256 << 10;  // too small to be kept warm
  Fabric fabric;
  auto puller = MakeBulk(fabric, {.wait = absl::ZeroDuration(), .stall = absl::Milliseconds(200)});
  FakeOwner owner;
  auto stalled = Fetch(*puller, TransferFrom(owner.listening.address, 1, kSize));
  BulkHeader start = Header(BulkKind::kStart, owner.AcceptPull(), kSize);
  start.length = kSize;
  owner.peer->SendBytes(std::string(reinterpret_cast<const char*>(&start), sizeof(start)) + std::string(1000, 'x'));
  EXPECT_EQ(stalled.get().status().code(), absl::StatusCode::kAborted);
  owner.peer->SendBytes(std::string(kSize - 1000, 'x'));
  std::string payload;
  EXPECT_EQ(owner.peer->ReadHeader(&payload).kind, BulkKind::kCancel);
  auto fine = Fetch(*puller, TransferFrom(owner.listening.address, 2, 4));
  owner.peer->Send(Header(BulkKind::kStart, owner.peer->ReadHeader(&payload).tag, 4), "done");
  const absl::StatusOr<Bytes> got = fine.get();
  ASSERT_TRUE(got.ok()) << got.status();
  EXPECT_EQ(got->view(), "done");
}

TEST(BulkTest, AnOwnerThatLiesIsCutOff) {
  Fabric fabric;
  auto puller = MakeBulk(fabric);
  struct Lie {
    BulkKind first;
    uint64_t size;
    std::string payload;
    BulkKind second;
  };
  for (const Lie& lie : {Lie{BulkKind::kStart, 10, std::string(11, 'x'), BulkKind::kChunk},  // more than announced
                         Lie{BulkKind::kChunk, 10, "abc", BulkKind::kChunk},                 // no start
                         Lie{BulkKind::kStart, 10, "abc", BulkKind::kStart},                 // two starts
                         Lie{BulkKind::kStart, 10, "", BulkKind::kChunk},                    // no end of empty chunks
                         Lie{BulkKind::kPull, 10, "abc", BulkKind::kPull}}) {
    FakeOwner owner;
    auto pulled = Fetch(*puller, TransferFrom(owner.listening.address, 1, 10));
    const uint64_t tag = owner.AcceptPull();
    owner.peer->Send(Header(lie.first, tag, lie.size), lie.payload);
    BulkHeader second = Header(lie.second, tag, lie.size);
    owner.peer->SendIfOpen(second, "abc");
    EXPECT_EQ(pulled.get().status().code(), absl::StatusCode::kUnavailable);
  }
}

TEST(BulkTest, AnOwnerThatIsKilled) {
  Fabric fabric;
  auto puller = MakeBulk(fabric);
  auto free_port = ListenOn("127.0.0.1:0");
  const std::string address = free_port->address;
  Subprocess::Options options;
  const int listening = free_port->fd.get();
  options.argv = {"python3", "-c",
                  "import socket,time\ns=socket.socket(fileno=5)\nc,_=s.accept()\nc.recv(32)\ntime.sleep(1000)"};
  options.fds = {{listening, 5}};
  auto child = Subprocess::Start(std::move(options));
  ASSERT_TRUE(child.ok()) << child.status();
  free_port->fd = UniqueFd();
  auto pulled = Fetch(*puller, TransferFrom(address, 1, 10));
  EXPECT_EQ(pulled.wait_for(std::chrono::milliseconds(300)), std::future_status::timeout);
  (*child)->Kill(SIGKILL);
  EXPECT_EQ(pulled.get().status().code(), absl::StatusCode::kUnavailable);
}

TEST(BulkTest, DestructionEndsWhatIsUnderWay) {
  Fabric fabric;
  auto owner = MakeBulk(fabric), puller = MakeBulk(fabric);
  std::atomic<int> cancelled = 0;
  for (int i = 0; i < 10; ++i) {
    puller->Fetch(TransferFrom(owner->endpoint(), 1000 + i, 1), [&](absl::StatusOr<Bytes> bytes) {
      if (bytes.status().code() == absl::StatusCode::kCancelled) ++cancelled;
    });
  }
  puller.reset();
  EXPECT_EQ(cancelled, 10);
}

TEST(BulkTest, ACallbackMayDestroyThePuller) {
  Fabric fabric;
  auto owner = MakeBulk(fabric);
  for (const char* text : {"abc", ""}) {
    auto puller = MakeBulk(fabric);
    std::promise<void> done;
    const Transfer transfer = owner->Offer(Bytes::OfString(text));
    Bulk* raw = puller.get();
    raw->Fetch(transfer, [&](absl::StatusOr<Bytes> bytes) {
      EXPECT_TRUE(bytes.ok());
      puller.reset();
      done.set_value();
    });
    done.get_future().wait();
  }
}

}  // namespace
}  // namespace parkway::fabric
