#include "fabric/link.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <future>
#include <mutex>
#include <random>
#include <thread>
#include <vector>

#include "base/limits.h"
#include "base/subprocess.h"
#include "fabric/frame_reader.h"
#include "fabric/socket.h"

namespace parkway::fabric {
namespace {

Frame MakeFrame(std::string text) { return std::make_shared<const std::string>(std::move(text)); }

// One end of a link under test: keeps what comes, and lets the test wait for it.
struct End {
  std::mutex mutex;
  std::condition_variable changed;
  std::unique_ptr<Link> link;
  std::vector<std::string> messages;
  std::vector<absl::Status> closed;
  bool opened = false;
  bool echo = false;
  bool own_thread = false;

  LinkHandlers Handlers() {
    LinkHandlers handlers;
    handlers.own_thread = own_thread;
    handlers.on_message = [this](std::string_view message) {
      if (echo) link->Send(MakeFrame(std::string(message)));
      std::lock_guard lock(mutex);
      messages.emplace_back(message);
      changed.notify_all();
    };
    handlers.on_closed = [this](absl::Status why) {
      std::lock_guard lock(mutex);
      closed.push_back(std::move(why));
      changed.notify_all();
    };
    return handlers;
  }
  void Open(std::unique_ptr<Link> l) {
    std::lock_guard lock(mutex);
    link = std::move(l);
    opened = true;
    changed.notify_all();
  }
  void WaitOpen() {
    std::unique_lock lock(mutex);
    changed.wait(lock, [this] { return opened; });
  }
  std::vector<std::string> WaitMessages(size_t n) {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return messages.size() >= n || !closed.empty(); });
    return messages;
  }
  absl::Status WaitClosed() {
    std::unique_lock lock(mutex);
    changed.wait(lock, [this] { return !closed.empty(); });
    return closed[0];
  }
};

std::string UnixAddressForTest() {
  static std::atomic<int> count = 0;
  return "unix:" + testing::TempDir() + "/link_test_" + std::to_string(getpid()) + "_" + std::to_string(count++);
}

class LinkTest : public testing::TestWithParam<bool> {
 protected:
  std::unique_ptr<Fabric::Listener> Listen(Fabric& fabric, End& end) {
    auto listener = fabric.Listen(GetParam() ? UnixAddressForTest() : "127.0.0.1:0", [&end](std::string) {
      return Fabric::Accepted{end.Handlers(), [&end](std::unique_ptr<Link> link) { end.Open(std::move(link)); }};
    });
    EXPECT_TRUE(listener.ok()) << listener.status();
    return *std::move(listener);
  }
  static void Connect(Fabric& fabric, const std::string& address, End& end) {
    fabric.Connect(address, end.Handlers(), [&end](absl::StatusOr<std::unique_ptr<Link>> link) {
      ASSERT_TRUE(link.ok()) << link.status();
      end.Open(*std::move(link));
    });
    end.WaitOpen();
  }
};

// A peer without any of our code: sends and reads raw bytes.
UniqueFd RawConnect(const std::string& address) {
  const auto parsed = ParseAddress(address);
  if (!parsed->unix_path.empty()) {
    UniqueFd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const auto raw = UnixAddress(parsed->unix_path);
    EXPECT_EQ(connect(fd.get(), raw->get(), raw->size), 0);
    return fd;
  }
  UniqueFd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in in{};
  in.sin_family = AF_INET;
  in.sin_port = htons(static_cast<uint16_t>(std::stoi(parsed->port)));
  inet_pton(AF_INET, parsed->host.c_str(), &in.sin_addr);
  EXPECT_EQ(connect(fd.get(), reinterpret_cast<sockaddr*>(&in), sizeof(in)), 0);
  return fd;
}
void RawSend(const UniqueFd& fd, const std::string& bytes) {
  ASSERT_EQ(send(fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL), static_cast<ssize_t>(bytes.size()));
}

TEST_P(LinkTest, EchoesMessagesOfAllSizes) {
  End server, client;
  server.echo = true;
  Fabric a, b;
  auto listener = Listen(a, server);
  Connect(b, listener->address(), client);
  std::vector<std::string> sent;
  for (size_t size : {1, 4, 100, 5000, 65536, 1 << 20, 9 << 20, 2}) {
    sent.push_back(std::string(size, static_cast<char>('a' + sent.size())));
    client.link->Send(MakeFrame(sent.back()));
  }
  EXPECT_EQ(client.WaitMessages(sent.size()), sent);
  EXPECT_FALSE(client.link->peer().empty());
  client.link->Close(absl::AbortedError("done"));
  EXPECT_EQ(client.WaitClosed().message(), "done");
  const absl::Status why = server.WaitClosed();
  EXPECT_EQ(why.code(), absl::StatusCode::kUnavailable);
  EXPECT_NE(why.message().find("closed the connection"), std::string::npos) << why;
}

TEST_P(LinkTest, ManyThreadsSendEachInItsOrder) {
  End server, client;
  Fabric a, b;
  auto listener = Listen(a, server);
  Connect(b, listener->address(), client);
  constexpr int kThreads = 4, kEach = 5000;
  {
    std::vector<std::jthread> threads;
    for (int t = 0; t < kThreads; ++t) {
      threads.emplace_back([&, t] {
        std::minstd_rand random(t);
        for (int i = 0; i < kEach; ++i) {
          client.link->Send(
              MakeFrame(std::to_string(t) + " " + std::to_string(i) + " " + std::string(random() % 300, 'x')));
        }
      });
    }
  }
  std::vector<int> next(kThreads, 0);
  for (const std::string& message : server.WaitMessages(kThreads * kEach)) {
    const int t = message[0] - '0';
    EXPECT_EQ(std::stoi(message.substr(2)), next[t]++);
  }
  EXPECT_EQ(next, std::vector<int>(kThreads, kEach));
}

TEST_P(LinkTest, AHundredLinksAtOnce) {
  Fabric a, b;
  std::vector<std::unique_ptr<Link>> accepted;  // the fabric thread's
  auto listener = a.Listen(GetParam() ? UnixAddressForTest() : "127.0.0.1:0", [&](std::string) {
    auto slot = std::make_shared<Link*>(nullptr);
    LinkHandlers handlers;
    handlers.on_message = [slot](std::string_view message) { (*slot)->Send(MakeFrame(std::string(message))); };
    return Fabric::Accepted{std::move(handlers), [&accepted, slot](std::unique_ptr<Link> link) {
                              *slot = link.get();
                              accepted.push_back(std::move(link));
                            }};
  });
  ASSERT_TRUE(listener.ok());
  std::vector<End> ends(100);
  for (End& end : ends) Connect(b, (*listener)->address(), end);
  for (int round = 0; round < 20; ++round) {
    for (size_t i = 0; i < ends.size(); ++i)
      ends[i].link->Send(MakeFrame(std::to_string(i) + "/" + std::to_string(round)));
  }
  for (size_t i = 0; i < ends.size(); ++i) {
    const auto messages = ends[i].WaitMessages(20);
    ASSERT_EQ(messages.size(), 20u);
    EXPECT_EQ(messages[19], std::to_string(i) + "/19");
  }
}

TEST_P(LinkTest, GarbageClosesTheLinkAndNamesThePeer) {
  for (const std::string& garbage :
       {std::string("GET / HTTP/1.1\r\n\r\n"), std::string(kLinkPreface) + std::string(4, '\0'),
        std::string(kLinkPreface) + std::string(4, '\xff'), std::string(1000, '\x16')}) {
    End server;
    Fabric fabric;
    auto listener = Listen(fabric, server);
    const UniqueFd raw = RawConnect(listener->address());
    RawSend(raw, garbage);
    const absl::Status why = server.WaitClosed();
    EXPECT_EQ(why.code(), absl::StatusCode::kInvalidArgument) << why;
    EXPECT_NE(why.message().find(server.link->peer()), std::string::npos) << why;
    EXPECT_TRUE(server.messages.empty());
  }
}

TEST_P(LinkTest, HalfAMessageIsNotDelivered) {
  End server;
  Fabric fabric;
  auto listener = Listen(fabric, server);
  {
    const UniqueFd raw = RawConnect(listener->address());
    RawSend(raw, std::string(kLinkPreface) + std::string("\x01\0\0\0w", 5) + std::string("\x0a\0\0\0abc", 7));
    EXPECT_EQ(server.WaitMessages(1), std::vector<std::string>{"w"});
    char preface[4];  // read, so that closing is no reset
    ASSERT_EQ(recv(raw.get(), preface, sizeof(preface), MSG_WAITALL), 4);
  }
  const absl::Status why = server.WaitClosed();
  EXPECT_EQ(why.code(), absl::StatusCode::kUnavailable);
  EXPECT_NE(why.message().find("inside a message"), std::string::npos) << why;
  EXPECT_EQ(server.messages.size(), 1u);
}

TEST_P(LinkTest, APeerThatReadsNothingIsClosedAtTheLimit) {
  End server;
  Fabric fabric;
  auto listener = Listen(fabric, server);
  const UniqueFd raw = RawConnect(listener->address());
  server.WaitOpen();
  const Frame frame = MakeFrame(std::string(16 << 20, 'x'));  // one string, however often it is queued
  for (size_t sent = 0; sent < 2 * limits::kLinkQueueBytes; sent += frame->size()) server.link->Send(frame);
  const absl::Status why = server.WaitClosed();
  EXPECT_EQ(why.code(), absl::StatusCode::kResourceExhausted) << why;
  EXPECT_NE(why.message().find(server.link->peer()), std::string::npos) << why;
  EXPECT_EQ(frame.use_count(), 1);
}

TEST_P(LinkTest, ASlowPeerGetsEverything) {
  End server;
  Fabric fabric;
  auto listener = Listen(fabric, server);
  const UniqueFd raw = RawConnect(listener->address());
  server.WaitOpen();
  std::string expected(kLinkPreface);
  for (int i = 0; i < 3000; ++i) {
    const std::string body(1 + i, static_cast<char>(i));
    server.link->Send(MakeFrame(body));
    const uint32_t size = static_cast<uint32_t>(body.size());
    expected.append(reinterpret_cast<const char*>(&size), 4).append(body);
  }
  std::string got;
  std::vector<char> buffer(10000);
  while (got.size() < expected.size()) {
    const ssize_t n = recv(raw.get(), buffer.data(), buffer.size(), 0);
    ASSERT_GT(n, 0);
    got.append(buffer.data(), static_cast<size_t>(n));
  }
  EXPECT_TRUE(got == expected);
}

TEST_P(LinkTest, MessagesOfASizeThatCannotBeCloseTheLink) {
  End server, client;
  Fabric a, b;
  auto listener = Listen(a, server);
  Connect(b, listener->address(), client);
  client.link->Send(MakeFrame(""));
  EXPECT_EQ(client.WaitClosed().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_FALSE(server.WaitClosed().ok());
}

TEST_P(LinkTest, WhatWasSentBeforeCloseArrives) {
  End server, client;
  Fabric a, b;
  auto listener = Listen(a, server);
  Connect(b, listener->address(), client);
  client.link->Send(MakeFrame("refused"));
  client.link.reset();
  EXPECT_FALSE(server.WaitClosed().ok());
  EXPECT_EQ(server.messages, std::vector<std::string>{"refused"});
  EXPECT_TRUE(client.closed.empty());  // a destroyed link tells nothing
}

TEST_P(LinkTest, AHandlerMayDestroyItsLink) {
  for (bool own_thread : {false, true}) {
    End client;
    Fabric a, b;
    std::unique_ptr<Link> link;
    std::promise<Link*> opened;
    auto held = std::make_shared<int>(0);
    std::atomic<int> calls = 0;
    auto listener = a.Listen(GetParam() ? UnixAddressForTest() : "127.0.0.1:0", [&](std::string) {
      LinkHandlers handlers;
      handlers.own_thread = own_thread;
      handlers.on_message = [&, held](std::string_view) {
        ++calls;
        link.reset();
      };
      handlers.on_closed = [](absl::Status) { ADD_FAILURE() << "after destruction"; };
      return Fabric::Accepted{std::move(handlers), [&](std::unique_ptr<Link> l) {
                                link = std::move(l);
                                opened.set_value(link.get());
                              }};
    });
    ASSERT_TRUE(listener.ok());
    Connect(b, (*listener)->address(), client);
    client.link->Send(MakeFrame("1"));
    client.link->Send(MakeFrame("2"));
    Link* server = opened.get_future().get();
    if (own_thread) server->RunReadLoop();
    EXPECT_FALSE(client.WaitClosed().ok());
    listener->reset();
    EXPECT_EQ(calls, 1);
  }
}

TEST_P(LinkTest, DestructionWaitsForARunningHandler) {
  for (int i = 0; i < 30; ++i) {
    End server, client;
    server.echo = true;
    Fabric a, b;
    auto listener = Listen(a, server);
    Connect(b, listener->address(), client);
    for (int k = 0; k < 50; ++k) client.link->Send(MakeFrame("x"));
    client.WaitMessages(1);
    client.link.reset();
    const size_t seen = client.messages.size();  // no lock: nobody else may touch it any more
    std::this_thread::yield();
    EXPECT_EQ(client.messages.size(), seen);
  }
}

TEST_P(LinkTest, TheFabricClosesWhatIsLeft) {
  End server, client;
  auto a = std::make_unique<Fabric>();
  Fabric b;
  auto listener = Listen(*a, server);
  Connect(b, listener->address(), client);
  server.WaitOpen();
  a.reset();
  ASSERT_EQ(server.closed.size(), 1u);
  EXPECT_EQ(server.closed[0].code(), absl::StatusCode::kCancelled);
  EXPECT_FALSE(client.WaitClosed().ok());
  server.link->Send(MakeFrame("into the void"));
  server.link.reset();
  listener.reset();
}

TEST_P(LinkTest, AKilledPeerIsNoticed) {
  End server;
  Fabric fabric;
  auto listener = fabric.Listen("127.0.0.1:0", [&server](std::string) {
    return Fabric::Accepted{server.Handlers(), [&server](std::unique_ptr<Link> link) { server.Open(std::move(link)); }};
  });
  ASSERT_TRUE(listener.ok());
  const std::string port = ParseAddress((*listener)->address())->port;
  Subprocess::Options options;
  options.argv = {"bash", "-c",
                  "exec 3<>/dev/tcp/127.0.0.1/" + port + "; printf 'PKL1\\x05\\0\\0\\0hello' >&3; exec sleep 1000"};
  auto child = Subprocess::Start(std::move(options));
  ASSERT_TRUE(child.ok()) << child.status();
  EXPECT_EQ(server.WaitMessages(1), std::vector<std::string>{"hello"});
  (*child)->Kill(SIGKILL);
  EXPECT_EQ(server.WaitClosed().code(), absl::StatusCode::kUnavailable);
}

TEST_P(LinkTest, OwnThreadReadsUntilClosed) {
  End server, client;
  server.own_thread = true;
  server.echo = true;
  Fabric a, b;
  auto listener = Listen(a, server);
  Connect(b, listener->address(), client);
  server.WaitOpen();
  client.link->Send(MakeFrame("early"));
  std::thread::id reader;
  std::thread thread([&] {
    reader = std::this_thread::get_id();
    server.link->RunReadLoop();
    EXPECT_EQ(server.closed.size(), 1u);  // on_closed came before it returned
  });
  const std::string large(8 << 20, 'l');  // more than the socket takes at once: both ways wait for room
  client.link->Send(MakeFrame(large));
  client.link->Send(MakeFrame("last"));
  const auto echoed = client.WaitMessages(3);
  ASSERT_EQ(echoed.size(), 3u);
  EXPECT_TRUE(echoed[1] == large);
  server.link->Close(absl::AbortedError("enough"));
  thread.join();
  EXPECT_EQ(server.closed[0].message(), "enough");
  EXPECT_FALSE(client.WaitClosed().ok());
}

TEST_P(LinkTest, OwnThreadSeesThePeerLeave) {
  End server, client;
  server.own_thread = true;
  Fabric a, b;
  auto listener = Listen(a, server);
  Connect(b, listener->address(), client);
  server.WaitOpen();
  std::thread thread([&] { server.link->RunReadLoop(); });
  client.link.reset();
  thread.join();
  EXPECT_EQ(server.closed.at(0).code(), absl::StatusCode::kUnavailable);
}

TEST_P(LinkTest, DestructionEndsAnOwnThread) {
  End server, client;
  server.own_thread = true;
  Fabric a, b;
  auto listener = Listen(a, server);
  Connect(b, listener->address(), client);
  server.WaitOpen();
  Link* link = server.link.get();
  std::promise<void> running;
  std::thread thread([&] {
    running.set_value();
    link->RunReadLoop();
  });
  running.get_future().wait();
  client.link->Send(MakeFrame("x"));
  server.WaitMessages(1);
  server.link.reset();
  thread.join();
  EXPECT_TRUE(server.closed.empty());
}

INSTANTIATE_TEST_SUITE_P(Sockets, LinkTest, testing::Bool(),
                         [](const auto& info) { return info.param ? "Unix" : "Tcp"; });

TEST(ConnectTest, FailuresNameTheAddress) {
  Fabric fabric;
  std::string free_port;
  {
    auto listener = fabric.Listen("127.0.0.1:0", [](std::string) { return Fabric::Accepted(); });
    free_port = (*listener)->address();
  }
  const std::vector<std::pair<std::string, absl::StatusCode>> cases = {
      {free_port, absl::StatusCode::kUnavailable},
      {"unix:/no/such/socket", absl::StatusCode::kUnavailable},
      {"no.such.host.invalid:1", absl::StatusCode::kUnavailable},
      {"nonsense", absl::StatusCode::kInvalidArgument},
      {"unix:/" + std::string(300, 'x'), absl::StatusCode::kInvalidArgument}};
  for (const auto& [address, code] : cases) {
    std::promise<absl::Status> done;
    fabric.Connect(address, {}, [&](absl::StatusOr<std::unique_ptr<Link>> link) { done.set_value(link.status()); });
    const absl::Status status = done.get_future().get();
    EXPECT_EQ(status.code(), code) << status;
    EXPECT_NE(status.message().find(address.substr(5)), std::string::npos) << status;
  }
}

TEST(ConnectTest, ReconnectingForEverEndsWithTheFabric) {
  auto fabric = std::make_unique<Fabric>();
  std::atomic<int> tries = 0;
  std::atomic<bool> cancelled = false;
  Fabric* raw = fabric.get();
  std::function<void()> connect = [&] {
    raw->Connect("unix:/no/such/socket", {}, [&](absl::StatusOr<std::unique_ptr<Link>> link) {
      ++tries;
      if (link.status().code() == absl::StatusCode::kCancelled) {
        cancelled = true;
      } else {
        connect();
      }
    });
  };
  connect();
  while (tries < 10) std::this_thread::yield();
  fabric.reset();
  EXPECT_TRUE(cancelled);
}

}  // namespace
}  // namespace parkway::fabric
