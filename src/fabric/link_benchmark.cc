// Round trips of small messages between two processes, over links and over bare sockets.
//
//   link_benchmark            each case once: bare blocking sockets, the fabric's thread, a thread of the owner's
#include <benchmark/benchmark.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <future>
#include <string>

#include "absl/strings/str_cat.h"
#include "fabric/connect.h"
#include "fabric/link.h"

namespace parkway::fabric {
namespace {

constexpr size_t kMessageBytes = 100;

std::string Addr(bool unix_socket) {
  return unix_socket ? absl::StrCat("unix:/tmp/link_benchmark_", getpid(), ".sock") : "127.0.0.1:0";
}

// Runs `serve` in a child process; it writes the address that it listens on to the descriptor.
struct Server {
  template <typename F>
  explicit Server(F serve) {
    int fds[2];
    if (pipe(fds) != 0) std::abort();
    pid = fork();
    if (pid == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      serve(fds[1]);
      _exit(0);
    }
    char text[200];
    const ssize_t n = read(fds[0], text, sizeof(text));
    address.assign(text, static_cast<size_t>(n));
    close(fds[0]);
    close(fds[1]);
  }
  ~Server() {
    kill(pid, SIGKILL);
    waitpid(pid, nullptr, 0);
  }
  pid_t pid;
  std::string address;
};

void Publish(int fd, const std::string& address) {
  if (write(fd, address.data(), address.size()) < 0) std::abort();
}

void ReadWhole(int fd, char* data, size_t size) {
  for (size_t got = 0; got < size;) {
    const ssize_t n = recv(fd, data + got, size - got, 0);
    if (n <= 0) _exit(1);
    got += static_cast<size_t>(n);
  }
}

void BareSockets(benchmark::State& state) {
  const std::string address = Addr(state.range(0) != 0);
  Server server([&](int out) {
    auto listening = ListenOn(address);
    Publish(out, listening->address);
    const int fd = accept(listening->fd.get(), nullptr, nullptr);
    SetNoDelay(fd);
    for (char buffer[kMessageBytes];;) {
      ReadWhole(fd, buffer, sizeof(buffer));
      if (send(fd, buffer, sizeof(buffer), 0) < 0) _exit(1);
    }
  });
  auto loop = std::make_shared<Loop>("bench");
  std::promise<UniqueFd> dialed;
  Dial(loop, server.address, absl::Seconds(5), [&](absl::StatusOr<UniqueFd> fd) { dialed.set_value(*std::move(fd)); });
  const UniqueFd fd = dialed.get_future().get();
  loop->Stop();
  char buffer[kMessageBytes] = {};
  for (auto _ : state) {
    if (send(fd.get(), buffer, sizeof(buffer), 0) < 0) std::abort();
    ReadWhole(fd.get(), buffer, sizeof(buffer));
  }
}

// The server echoes on the fabric's thread (range 1 = 0) or on its own; the client's next message is sent from the
// handler of the last one, so that the trip is measured and no wake-up of the measuring thread.
void Links(benchmark::State& state) {
  const std::string address = Addr(state.range(0) != 0);
  const bool own_thread = state.range(1) != 0;
  Server server([&](int out) {
    Fabric fabric;
    std::unique_ptr<Link> link;
    std::promise<void> opened;
    auto listener = fabric.Listen(address, [&](std::string) {
      LinkHandlers handlers;
      handlers.own_thread = own_thread;
      handlers.on_message = [&](std::string_view m) { link->Send(std::make_shared<const std::string>(m)); };
      handlers.on_closed = [](absl::Status) {};
      return Fabric::Accepted{std::move(handlers), [&](std::unique_ptr<Link> l) {
                                link = std::move(l);
                                opened.set_value();
                              }};
    });
    Publish(out, (*listener)->address());
    opened.get_future().wait();
    if (own_thread) link->RunReadLoop();
    pause();
  });
  Fabric fabric;
  std::unique_ptr<Link> link;
  std::promise<void> opened, stopped;
  LinkHandlers handlers;
  handlers.own_thread = true;
  const Frame message = std::make_shared<const std::string>(std::string(kMessageBytes, 'x'));
  handlers.on_message = [&](std::string_view) {
    if (state.KeepRunning()) {
      link->Send(message);
    } else {
      link->Close(absl::OkStatus());
    }
  };
  handlers.on_closed = [](absl::Status) {};
  fabric.Connect(server.address, std::move(handlers), [&](absl::StatusOr<std::unique_ptr<Link>> l) {
    link = *std::move(l);
    opened.set_value();
  });
  opened.get_future().wait();
  link->Send(message);
  link->RunReadLoop();
}

// How fast one thread can hand over small messages while the other side keeps reading.
void OneWay(benchmark::State& state) {
  const std::string address = Addr(state.range(0) != 0);
  Server server([&](int out) {
    Fabric fabric;
    std::unique_ptr<Link> link;
    auto listener = fabric.Listen(address, [&](std::string) {
      return Fabric::Accepted{{[](std::string_view) {}, [](absl::Status) {}},
                              [&](std::unique_ptr<Link> l) { link = std::move(l); }};
    });
    Publish(out, (*listener)->address());
    pause();
  });
  Fabric fabric;
  std::promise<std::unique_ptr<Link>> opened;
  fabric.Connect(server.address, {[](std::string_view) {}, [](absl::Status) {}},
                 [&](absl::StatusOr<std::unique_ptr<Link>> l) { opened.set_value(*std::move(l)); });
  auto link = opened.get_future().get();
  const Frame message = std::make_shared<const std::string>(std::string(kMessageBytes, 'x'));
  for (auto _ : state) link->Send(message);
}

BENCHMARK(BareSockets)->ArgName("unix")->Arg(0)->Arg(1)->UseRealTime();
BENCHMARK(Links)->ArgNames({"unix", "own_thread"})->ArgsProduct({{0, 1}, {0, 1}})->UseRealTime();
BENCHMARK(OneWay)->ArgName("unix")->Arg(0)->Arg(1)->UseRealTime();

}  // namespace
}  // namespace parkway::fabric

BENCHMARK_MAIN();
