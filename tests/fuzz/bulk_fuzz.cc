// The bulk protocol from both sides, over a real socket: the first byte says whether the bytes come from a puller to a
// server that holds transfers, or from an owner to one who pulls. Transfers stall after a moment here, and some pieces
// of the input come only after that. Every pull is answered, and a server outlives any peer.
#include <arpa/inet.h>
#include <glog/logging.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <future>
#include <memory>
#include <string>
#include <vector>

#include "fabric/bulk.h"
#include "fabric/link.h"
#include "messages.h"

namespace parkway::fuzz {
namespace {

constexpr absl::Duration kStall = absl::Milliseconds(20);
constexpr size_t kPulledBytes = 300;
constexpr int kPulls = 3;
constexpr int kMaxPieces = 16;

sockaddr_in Loopback(int port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

struct World {
  World() {
    bulk = *fabric::Bulk::Create(*fabric, "127.0.0.1", {.wait = kStall, .stall = kStall});
    for (uint64_t id = 1; id <= 3; ++id) bulk->Fulfil(id, Bytes::OfString(std::string(1000 * id, 'b')));
    bulk->Fail(4, absl::AbortedError("it never came"));
    listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address = Loopback(0);
    socklen_t size = sizeof(address);
    Require(bind(listener, reinterpret_cast<sockaddr*>(&address), size) == 0 && listen(listener, 16) == 0 &&
                getsockname(listener, reinterpret_cast<sockaddr*>(&address), &size) == 0,
            "there is a port to listen on");
    port = ntohs(address.sin_port);
  }
  std::unique_ptr<fabric::Fabric> fabric = std::make_unique<fabric::Fabric>();
  std::unique_ptr<fabric::Bulk> bulk;
  int listener = -1;
  int port = 0;
};
World& TheWorld() {
  static World& world = *new World;
  return world;
}

// Writes the pieces; then waits for the other side to close.
void Play(int fd, std::string_view input) {
  for (int i = 0; i < kMaxPieces && !input.empty(); ++i) {
    const std::string_view piece = NextMessage(input);
    if (!piece.empty() && piece[0] == 'W' && piece.size() == 1) {
      usleep(static_cast<useconds_t>(3 * absl::ToInt64Microseconds(kStall)));
      continue;
    }
    (void)!send(fd, piece.data(), piece.size(), MSG_NOSIGNAL);
  }
  shutdown(fd, SHUT_WR);
  char scratch[4096];
  while (recv(fd, scratch, sizeof(scratch), 0) > 0) {
  }
  close(fd);
}

void PlayPuller(std::string_view input) {
  const std::string endpoint = TheWorld().bulk->endpoint();
  const sockaddr_in address = Loopback(std::stoi(endpoint.substr(endpoint.rfind(':') + 1)));
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  Require(connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0,
          "a server outlives its peers");
  Play(fd, input);
}

void PlayOwner(std::string_view input) {
  World& world = TheWorld();
  std::vector<std::future<void>> answers;
  for (uint64_t id = 1; id <= kPulls; ++id) {
    Transfer transfer;
    transfer.set_id(id);
    transfer.set_size(kPulledBytes);
    transfer.set_endpoint("127.0.0.1:" + std::to_string(world.port));
    auto answered = std::make_shared<std::promise<void>>();
    answers.push_back(answered->get_future());
    world.bulk->Fetch(transfer, [answered](const absl::StatusOr<Bytes>& bytes) {
      if (bytes.ok()) Require(bytes->size == kPulledBytes, "a transfer has the bytes that were asked for");
      answered->set_value();
    });
  }
  const int fd = accept(world.listener, nullptr, nullptr);
  Play(fd, input);
  for (auto& answer : answers) answer.wait();
}

}  // namespace
}  // namespace parkway::fuzz

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  FLAGS_minloglevel = google::GLOG_FATAL;
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  if (size == 0) return 0;
  const std::string_view input(reinterpret_cast<const char*>(bytes) + 1, size - 1);
  bytes[0] % 2 == 0 ? parkway::fuzz::PlayPuller(input) : parkway::fuzz::PlayOwner(input);
  return 0;
}
