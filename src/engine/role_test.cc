// Engine processes over real sockets: started as a worker starts them, driven as a proxy does.
#include "engine/role.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmath>
#include <condition_variable>
#include <cstring>
#include <filesystem>
#include <mutex>
#include <nlohmann/json.hpp>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/subprocess.h"
#include "engine/conformance.h"
#include "engine/host_testing.h"
#include "engine/host_wire.h"

namespace parkway::engine {
namespace {

using ::testing::HasSubstr;
using namespace testing;  // NOLINT: host_testing.h

constexpr char kToken[] = "00ff17";
const std::string kTokenBytes("\x00\xff\x17", 3);

template <typename F>
bool WaitFor(F condition) {
  for (int i = 0; i < 30'000; ++i) {
    if (condition()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return false;
}

// An engine process and the lines that it wrote when it was ready.
struct Process {
  std::unique_ptr<Subprocess> child;
  std::vector<nlohmann::json> ready;
  std::string directory;

  Process(const std::vector<std::string>& arguments, const std::string& token, int lines) {
    char pattern[] = "/tmp/parkway-role-XXXXXX";
    directory = mkdtemp(pattern);
    int fds[2];
    if (pipe2(fds, O_CLOEXEC) != 0) std::abort();
    std::vector<std::string> argv = {"/proc/self/exe", "engine", directory};
    argv.insert(argv.end(), arguments.begin(), arguments.end());
    std::vector<std::pair<std::string, std::string>> env;
    if (!token.empty()) env.emplace_back("PARKWAY_ENGINE_TOKEN", token);
    auto started = Subprocess::Start({.argv = argv, .env = env, .fds = {{fds[1], 3}}});
    if (!started.ok()) std::abort();
    child = *std::move(started);
    close(fds[1]);
    std::string text;
    char byte;
    while (read(fds[0], &byte, 1) == 1) text += byte;
    close(fds[0]);
    for (absl::string_view line : absl::StrSplit(text, '\n', absl::SkipEmpty())) {
      ready.push_back(nlohmann::json::parse(std::string(line)));
    }
    EXPECT_EQ(ready.size(), lines);
  }
  ~Process() {
    child->Kill(SIGKILL);
    child->Wait(absl::Seconds(10));
    std::filesystem::remove_all(directory);
  }
};

// The proxy's end of one link.
class Proxy {
 public:
  Proxy(fabric::Fabric& fabric, const std::string& address) {
    fabric::LinkHandlers handlers;
    handlers.on_message = [this](std::string_view message) { record.Add(std::string(message)); };
    handlers.on_closed = [this](const absl::Status&) { closed = true; };
    fabric.Connect(address, std::move(handlers), [this](absl::StatusOr<std::unique_ptr<fabric::Link>> made) {
      EXPECT_TRUE(made.ok()) << made.status();
      std::lock_guard<std::mutex> lock(mutex_);
      if (made.ok()) link_ = *std::move(made);
    });
    EXPECT_TRUE(WaitFor([&] { return Link() != nullptr; }));
  }
  ~Proxy() {
    std::unique_ptr<fabric::Link> link;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      link = std::move(link_);
    }
  }
  void SendBytes(const std::string& bytes) { Link()->Send(std::make_shared<const std::string>(bytes)); }
  uint64_t Send(Op op) {
    op.set_seq(++seq_);
    SendBytes(op.SerializeAsString());
    return seq_;
  }
  void SayHello(int devices, const std::string& token = kTokenBytes, bool control = false) {
    ProxyHello hello;
    hello.set_token(token);
    hello.set_control(control);
    for (int i = 0; i < devices; ++i) hello.add_devices(i);
    SendBytes(hello.SerializeAsString());
  }
  bool WasGreeted() {
    return WaitFor([&] { return !record.messages().empty() && record.messages()[0].has_hello(); });
  }

  Record record;
  std::atomic<bool> closed = false;

 private:
  fabric::Link* Link() {
    std::lock_guard<std::mutex> lock(mutex_);
    return link_.get();
  }
  std::mutex mutex_;
  std::unique_ptr<fabric::Link> link_;
  uint64_t seq_ = 0;
};

class RoleTest : public ::testing::Test {
 protected:
  fabric::Fabric fabric_;
};

// The suite's programs are used here, not its tests.
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(EngineConformance);

const Type kFour{ifrt::DType::kF32, {4}};

TEST_F(RoleTest, ServesOneProxyAndEndsWithIt) {
  Process process({"sim", "2", "1"}, kToken, 1);
  const nlohmann::json& ready = process.ready[0];
  EXPECT_EQ(ready["pid"], process.child->pid());
  const std::string unix_path = ready["unix_path"];
  EXPECT_TRUE(std::filesystem::exists(unix_path));

  Proxy garbage(fabric_, ready["address"]);
  garbage.SendBytes("GET / HTTP/1.1\r\n");
  Proxy stranger(fabric_, ready["address"]);
  stranger.SayHello(2, "guess");
  EXPECT_TRUE(WaitFor([&] { return garbage.closed && stranger.closed; }));

  auto bulk = fabric::Bulk::Create(fabric_, "127.0.0.1");
  ASSERT_TRUE(bulk.ok());
  {
    Proxy proxy(fabric_, "unix:" + unix_path);
    proxy.SayHello(2);
    ASSERT_TRUE(proxy.WasGreeted());
    EXPECT_EQ(proxy.record.messages()[0].hello().incarnation(), ready["incarnation"].get<uint64_t>());
    Proxy control(fabric_, ready["address"]);
    control.SayHello(2, kTokenBytes, true);
    ASSERT_TRUE(control.WasGreeted());

    // A large array there and back.
    const std::string text(3 << 20, 'x');
    auto blob = Blob::Create(text.size());
    ASSERT_TRUE(blob.ok());
    std::memcpy((*blob)->data(), text.data(), text.size());
    Op put = MakePut(1, {ifrt::DType::kU8, {3 << 20}}, "", {0, 1});
    *put.mutable_put()->mutable_sources(0)->mutable_transfer() = (*bulk)->Offer(Blob::Share(*blob));
    const uint64_t seq = proxy.Send(put);
    control.SendBytes(MakeRead(77, 0, 49).SerializeAsString());
    ASSERT_TRUE(WaitFor([&] { return proxy.record.done(seq); }));
    proxy.Send(MakeRead(1, 1, 50));
    ASSERT_TRUE(WaitFor([&] { return proxy.record.was_read(50) && proxy.record.was_read(49); }));
    EXPECT_FALSE(FromProto(proxy.record.read(49).status()).ok());
    std::atomic<bool> fetched = false;
    (*bulk)->Fetch(proxy.record.read(50).transfer(), [&](absl::StatusOr<Bytes> bytes) {
      EXPECT_TRUE(bytes.ok() && bytes->view() == text) << bytes.status();
      fetched = true;
    });
    EXPECT_TRUE(WaitFor([&] { return fetched.load(); }));

    // A chain of launches.
    proxy.Send(MakePut(2, kFour, std::string(16, 'y'), {0, 1}));
    proxy.Send(MakeLoad(1, "f", {0, 1}, {kFour}, {kFour}));
    uint64_t last = 0;
    for (uint64_t i = 2; i < 200; ++i) last = proxy.Send(MakeLaunch(1, {i}, {i + 1}, 0, {0}));
    EXPECT_TRUE(WaitFor([&] { return proxy.record.done(last); }));
    EXPECT_EQ(process.child->Wait(absl::ZeroDuration()), std::nullopt);
  }
  const auto end = process.child->Wait(absl::Seconds(30));
  ASSERT_TRUE(end.has_value());
  EXPECT_TRUE(end->ok()) << end->words();
  EXPECT_FALSE(std::filesystem::exists(unix_path));
}

TEST_F(RoleTest, ManySimEnginesInOneProcess) {
  Process process({"sim", "4", "8"}, kToken, 8);
  std::vector<std::unique_ptr<Proxy>> proxies;
  for (const nlohmann::json& ready : process.ready) {
    proxies.push_back(std::make_unique<Proxy>(fabric_, ready["address"]));
    proxies.back()->SayHello(4);
  }
  for (auto& proxy : proxies) {
    ASSERT_TRUE(proxy->WasGreeted());
    proxy->Send(MakeLoad(1, "f", {0, 1, 2, 3}, {}, {kFour}));
  }
  for (auto& proxy : proxies) {
    const uint64_t seq = proxy->Send(MakeLaunch(1, {}, {5}));
    EXPECT_TRUE(WaitFor([&] { return proxy->record.done(seq); }));
  }
  proxies.pop_back();
  EXPECT_EQ(process.child->Wait(absl::Milliseconds(100)), std::nullopt);  // the others are still served
  proxies.clear();
  EXPECT_TRUE(process.child->Wait(absl::Seconds(30)).has_value());
}

TEST_F(RoleTest, WrongStartsAreSaid) {
  Process no_token({"sim", "2", "1"}, "", 0);
  EXPECT_EQ(no_token.child->Wait(absl::Seconds(30))->code, 1);
  Process bad_token({"sim", "2", "1"}, "xyz", 0);
  EXPECT_EQ(bad_token.child->Wait(absl::Seconds(30))->code, 2);
  Process no_engine({"abacus", "2", "1"}, kToken, 0);
  EXPECT_EQ(no_engine.child->Wait(absl::Seconds(30))->code, 2);
  Process too_many({"jaxlib", "2", "4"}, kToken, 0);
  EXPECT_EQ(too_many.child->Wait(absl::Seconds(30))->code, 2);
}

// The same host in front of the engine that computes.
TEST_F(RoleTest, ComputesWithJaxlib) {
  const auto program = ReadTestProgram(getenv("PARKWAY_TEST_PROGRAMS"), "add");
  ASSERT_TRUE(program.ok()) << program.status();
  Process process({"jaxlib", "2", "1"}, kToken, 1);
  ASSERT_EQ(process.ready.size(), 1);
  Proxy proxy(fabric_, absl::StrCat("unix:", process.ready[0]["unix_path"].get<std::string>()));
  proxy.SayHello(2);
  ASSERT_TRUE(proxy.WasGreeted());
  const Type& type = program->parameters[0];
  const std::vector<float> ones(Elements(type.dims), 1.0F);
  const std::string bytes(reinterpret_cast<const char*>(ones.data()), ones.size() * sizeof(float));
  proxy.Send(MakePut(1, type, bytes, {1}));
  Op load = MakeLoad(1, "add", {1}, program->parameters, program->outputs);
  load.mutable_load()->set_inline_bytes(program->executable);
  load.mutable_load()->set_compile_options(program->compile_options);
  proxy.Send(load);
  uint64_t last = 0;
  constexpr int kLaunches = 100;
  for (uint64_t i = 1; i <= kLaunches; ++i) {
    last = proxy.Send(MakeLaunch(1, {i, i}, {i + 1, 10'000 + i}));
    proxy.Send(MakeDelete({i, 10'000 + i}));
  }
  ASSERT_TRUE(WaitFor([&] { return proxy.record.ended(last) > 0; }));
  EXPECT_TRUE(proxy.record.done(last)) << proxy.record.failure(last);
  proxy.Send(MakeRead(kLaunches + 1, 1, 50));
  ASSERT_TRUE(WaitFor([&] { return proxy.record.was_read(50); }));
  float value = 0;
  const std::string read = proxy.record.read(50).inline_bytes();
  ASSERT_EQ(read.size(), bytes.size());
  std::memcpy(&value, read.data(), sizeof(value));
  EXPECT_EQ(value, std::exp2(100.0F));  // doubled 100 times
  proxy.Send(MakeRead(kLaunches, 1, 51));
  ASSERT_TRUE(WaitFor([&] { return proxy.record.was_read(51); }));
  EXPECT_THAT(proxy.record.read(51).status().message(), HasSubstr("deleted"));
}

}  // namespace
}  // namespace parkway::engine

int main(int argc, char** argv) {
  if (argc == 6 && std::string(argv[1]) == "engine") {
    return parkway::engine::RunEngineRole({.engine = argv[3],
                                           .devices = std::atoi(argv[4]),
                                           .unix_dir = argv[2],
                                           .ready_fd = 3,
                                           .sim_engines = std::atoi(argv[5])});
  }
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
