// The manager, workers and engines as real processes, and a LeaseClient in this one. The program starts itself for
// every role: its first argument says which.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <mutex>
#include <sstream>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "base/liveness.h"
#include "base/log.h"
#include "base/random.h"
#include "base/subprocess.h"
#include "manager/lease_client.h"
#include "manager/role.h"
#include "manager/rpc.h"
#include "manager/slice_type.h"
#include "proto/parkway/manager.grpc.pb.h"
#include "worker/role.h"

namespace parkway::worker {
namespace {

using ::testing::HasSubstr;

// An engine that only lives: it says that it is ready, and that it is alive.
int RunFakeEngine(int argc, char** argv) {
  std::signal(SIGTERM, SIG_DFL);
  StartLiveness();
  int ready = -1;
  for (int i = 0; i < argc; ++i) {
    absl::string_view arg = argv[i];
    if (absl::ConsumePrefix(&arg, "--ready_fd=")) (void)absl::SimpleAtoi(arg, &ready);
  }
  if (std::getenv("PARKWAY_ENGINE_TOKEN") == nullptr) return 3;
  const std::string line = absl::StrCat("{\"incarnation\": ", RandomUint64(), ", \"address\": \"127.0.0.1:1\"}\n");
  if (write(ready, line.data(), line.size()) < 0) return 4;
  for (;;) pause();
}

// A role in a process of its own, with its log in a file.
class Role {
 public:
  Role(std::string name, std::vector<std::string> args)
      : log_(absl::StrCat(testing::TempDir(), "/", getpid(), "-", ++count_, "-", name)) {
    const int fd = open(log_.c_str(), O_CREAT | O_TRUNC | O_WRONLY | O_APPEND | O_CLOEXEC, 0600);
    Subprocess::Options options;
    options.argv = {"/proc/self/exe"};
    options.argv.insert(options.argv.end(), args.begin(), args.end());
    options.fds = {{fd, 2}};
    auto process = Subprocess::Start(std::move(options));
    close(fd);
    if (!process.ok()) std::cerr << process.status() << "\n";
    process_ = *std::move(process);
  }
  ~Role() {
    process_->Kill(SIGKILL);
    process_->Wait(absl::Seconds(10));
    if (testing::Test::HasFailure()) std::cerr << "---- " << log_ << "\n" << Log();
    unlink(log_.c_str());
  }
  void Kill(int signal) { process_->Kill(signal); }
  // Exit code; -1: killed, or it does not end.
  int Exit() {
    auto status = process_->Wait(absl::Seconds(30));
    return status && status->signal == 0 ? status->code : -1;
  }
  int pid() const { return process_->pid(); }
  std::string Log() const {
    std::ostringstream text;
    text << std::ifstream(log_).rdbuf();
    return text.str();
  }
  // Waits for `words` in its log; what follows them on that line.
  std::string Says(const std::string& words) const {
    for (int i = 0; i < 3000; ++i) {
      const std::string log = Log();
      const size_t at = log.find(words);
      if (at != std::string::npos) return log.substr(at + words.size(), log.find('\n', at) - at - words.size());
      absl::SleepFor(absl::Milliseconds(10));
    }
    ADD_FAILURE() << "not said: " << words;
    return "";
  }

 private:
  static inline int count_ = 0;
  const std::string log_;
  std::unique_ptr<Subprocess> process_;
};

std::unique_ptr<Role> StartManager(int port, int slices = 2) {
  return std::make_unique<Role>("manager",
                                std::vector<std::string>{"manager", absl::StrCat(port), absl::StrCat(slices)});
}
int PortOf(const Role& role) {
  int port = 0;
  EXPECT_TRUE(absl::SimpleAtoi(role.Says("Pathways Server serving on 127.0.0.1:"), &port));
  return port;
}
std::unique_ptr<Role> StartWorker(const std::string& name, int manager_port, const std::string& log = "") {
  return std::make_unique<Role>(log.empty() ? name : log,
                                std::vector<std::string>{"worker", name, absl::StrCat("127.0.0.1:", manager_port)});
}

// A port that was free a moment ago.
int FreePort() {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
  socklen_t size = sizeof(address);
  EXPECT_EQ(bind(fd, reinterpret_cast<sockaddr*>(&address), size), 0);
  getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size);
  close(fd);
  return ntohs(address.sin_port);
}

// A proxy's lease, as its owner sees it.
class Lease {
 public:
  Lease(int port, const std::string& types) : executor_(MakeSerialExecutor()) {
    LeaseRequest request;
    const auto parsed = manager::ParseSliceTypes(types).value();
    for (const SliceType& type : parsed) *request.add_slices() = type;
    request.set_owner("test");
    Do([&] {
      client_ = std::make_unique<manager::LeaseClient>(
          executor_.get(), calls_.queue(), absl::StrCat("127.0.0.1:", port), request,
          manager::LeaseClient::Handlers{.on_placement =
                                             [this](const Placement& placement) {
                                               std::lock_guard lock(mutex_);
                                               placements_.push_back(placement);
                                               changed_.notify_all();
                                             },
                                         .on_refused = [](const absl::Status& why) { ADD_FAILURE() << why; },
                                         .report = [](ProxyReport* report) { report->set_programs_run(12); }});
    });
  }
  ~Lease() {
    Do([&] { client_.reset(); });
  }
  void Restart(uint64_t incarnation) {
    Do([&] { client_->RestartEngine(incarnation, "a program does not end"); });
  }
  // Waits until a placement that came after the last one returned fits.
  Placement Until(const std::function<bool(const Placement&)>& fits) {
    std::unique_lock lock(mutex_);
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    for (;;) {
      for (; next_ < placements_.size(); ++next_) {
        if (fits(placements_[next_])) return placements_[next_++];
      }
      if (changed_.wait_until(lock, deadline) == std::cv_status::timeout) {
        ADD_FAILURE() << "it does not come; last: " << (placements_.empty() ? "-" : placements_.back().DebugString());
        return {};
      }
    }
  }
  Placement UntilAllUp() {
    return Until([](const Placement& p) { return p.slices_size() > 0 && Count(p, true) == Count(p, false); });
  }
  // The cause of the first host that is down with one.
  std::string UntilDown() {
    Placement placement = Until([](const Placement& p) { return !Cause(p).empty(); });
    return Cause(placement);
  }

 private:
  void Do(std::function<void()> task) {
    absl::Notification done;
    executor_->Post([&] {
      task();
      done.Notify();
    });
    done.WaitForNotification();
  }
  static int Count(const Placement& placement, bool only_up) {
    int n = 0;
    for (const auto& slice : placement.slices()) {
      for (const auto& host : slice.hosts()) n += !only_up || host.up();
    }
    return n;
  }
  static std::string Cause(const Placement& placement) {
    for (const auto& slice : placement.slices()) {
      for (const auto& host : slice.hosts()) {
        if (!host.up() && host.has_cause()) return host.cause().message();
      }
    }
    return "";
  }

  std::unique_ptr<Executor> executor_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Placement> placements_;
  size_t next_ = 0;
  manager::CompletionThread calls_;
  std::unique_ptr<manager::LeaseClient> client_;
};

const EngineEndpoint& Engine(const Placement& placement, int slice) {
  return placement.slices(slice).hosts(0).engine();
}

ManagerStatus StatusOf(int port) {
  auto stub = Manager::NewStub(manager::ManagerChannel(absl::StrCat("127.0.0.1:", port)));
  grpc::ClientContext context;
  context.set_wait_for_ready(true);
  ManagerStatus status;
  EXPECT_TRUE(stub->Status(&context, ManagerStatusRequest(), &status).ok());
  return status;
}

// Two workers, each a slice, and a lease of both.
class ClusterTest : public testing::Test {
 protected:
  void Start() {
    manager_ = StartManager(0);
    port_ = PortOf(*manager_);
    a_ = StartWorker("a", port_);
    a_->Says("Joined");
    b_ = StartWorker("b", port_);
    lease_ = std::make_unique<Lease>(port_, "cpu:1x2,cpu:1x2");
    first_ = lease_->UntilAllUp();
    ASSERT_EQ(first_.slices_size(), 2);
  }
  void TearDown() override { lease_.reset(); }

  std::unique_ptr<Role> manager_, a_, b_;
  int port_ = 0;
  std::unique_ptr<Lease> lease_;
  Placement first_;
};

TEST_F(ClusterTest, AnyOrderOfStarts) {
  port_ = FreePort();
  lease_ = std::make_unique<Lease>(port_, "cpu:1x2,cpu:1x2");
  a_ = StartWorker("a", port_);
  EXPECT_THAT(a_->Says("Waiting for the manager at 127.0.0.1:"), HasSubstr("it is tried again for ever"));
  manager_ = StartManager(port_);
  EXPECT_THAT(
      lease_->Until([](const Placement& p) { return absl::StrContains(p.waiting_for(), "1 free"); }).waiting_for(),
      HasSubstr("2 x cpu:1x2"));
  b_ = StartWorker("b", port_);
  const Placement placement = lease_->UntilAllUp();
  EXPECT_EQ(placement.slices_size(), 2);
  manager_->Says("*** 2/2 Pathways Slices Now Ready ***");
  a_->Says("argv[2]: '127.0.0.1:");
  b_->Says("Pathways Server serving on 127.0.0.1:");
}

TEST_F(ClusterTest, KilledWorkerTakesItsEngineAlongAndComesBack) {
  Start();
  const int engine = static_cast<int>(Engine(first_, 1).pid());
  b_->Kill(SIGKILL);
  EXPECT_THAT(lease_->UntilDown(), HasSubstr("worker b (host 0 of slice-1) is lost: its connection broke"));
  for (int i = 0; i < 1000 && kill(engine, 0) == 0; ++i) absl::SleepFor(absl::Milliseconds(10));
  EXPECT_NE(kill(engine, 0), 0);
  b_ = StartWorker("b", port_);
  const Placement again = lease_->UntilAllUp();
  EXPECT_EQ(again.lease(), first_.lease());
  EXPECT_EQ(Engine(again, 0).incarnation(), Engine(first_, 0).incarnation());
  EXPECT_NE(Engine(again, 1).incarnation(), Engine(first_, 1).incarnation());
}

TEST_F(ClusterTest, FrozenWorkerIsLostAndComesBackWithANewEngine) {
  Start();
  b_->Kill(SIGSTOP);
  EXPECT_THAT(lease_->UntilDown(), HasSubstr("no heartbeat for 2.5s"));
  b_->Kill(SIGCONT);
  const Placement again = lease_->UntilAllUp();
  EXPECT_EQ(Engine(again, 0).incarnation(), Engine(first_, 0).incarnation());
  EXPECT_NE(Engine(again, 1).incarnation(), Engine(first_, 1).incarnation());
}

TEST_F(ClusterTest, KilledEngineIsToldOfAndStartedAgain) {
  Start();
  ASSERT_EQ(kill(static_cast<int>(Engine(first_, 0).pid()), SIGKILL), 0);
  EXPECT_THAT(lease_->UntilDown(), HasSubstr("the engine of worker a: its process ("));
  const Placement again = lease_->UntilAllUp();
  EXPECT_NE(Engine(again, 0).incarnation(), Engine(first_, 0).incarnation());
  EXPECT_EQ(Engine(again, 1).incarnation(), Engine(first_, 1).incarnation());
  a_->Says("killed by signal 9 (SIGKILL)");
}

TEST_F(ClusterTest, FrozenEngineIsKilledAndStartedAgain) {
  Start();
  ASSERT_EQ(kill(static_cast<int>(Engine(first_, 0).pid()), SIGSTOP), 0);
  EXPECT_THAT(lease_->UntilDown(), HasSubstr("frozen"));
  EXPECT_NE(Engine(lease_->UntilAllUp(), 0).incarnation(), Engine(first_, 0).incarnation());
}

TEST_F(ClusterTest, ProxyRestartsAnEngine) {
  Start();
  lease_->Restart(Engine(first_, 1).incarnation());
  EXPECT_THAT(lease_->UntilDown(), HasSubstr("restarted: a program does not end"));
  EXPECT_NE(Engine(lease_->UntilAllUp(), 1).incarnation(), Engine(first_, 1).incarnation());
}

TEST_F(ClusterTest, TwoWorkersOfOneIdentity) {
  Start();
  auto second = StartWorker("b", port_, "second");
  EXPECT_THAT(second->Says("The manager refuses this worker: "), HasSubstr("a worker named b has joined already"));
  EXPECT_EQ(second->Exit(), 1);
  const ManagerStatus status = StatusOf(port_);
  EXPECT_EQ(status.slices(1).workers(0).pid(), b_->pid());
  EXPECT_TRUE(status.slices(1).workers(0).engine_up());
}

TEST_F(ClusterTest, EnginesGoOnWhileTheManagerIsKilledAndStartedAgain) {
  Start();
  manager_->Kill(SIGKILL);
  a_->Says("Waiting for the manager");
  manager_ = StartManager(port_);
  manager_->Says("is taken over");
  manager_->Says("*** 2/2 Pathways Slices Now Ready ***");
  const Placement again = lease_->UntilAllUp();
  EXPECT_EQ(again.lease(), first_.lease());
  for (int i : {0, 1}) EXPECT_EQ(Engine(again, i).incarnation(), Engine(first_, i).incarnation());
}

TEST_F(ClusterTest, AnEndedLeasesEnginesAreStoppedAndTheNextOneIsServed) {
  Start();
  Lease next(port_, "cpu:1x2");
  EXPECT_THAT(next.Until([](const Placement&) { return true; }).waiting_for(), HasSubstr("0 free, 2 leased"));
  lease_.reset();
  const Placement placement = next.UntilAllUp();
  EXPECT_NE(placement.lease(), first_.lease());
  EXPECT_NE(Engine(placement, 0).incarnation(), Engine(first_, 0).incarnation());
  for (int i = 0; i < 1000 && kill(static_cast<int>(Engine(first_, 1).pid()), 0) == 0; ++i) {
    absl::SleepFor(absl::Milliseconds(10));
  }
  EXPECT_NE(kill(static_cast<int>(Engine(first_, 1).pid()), 0), 0);
}

TEST_F(ClusterTest, SigtermIsACleanEnd) {
  Start();
  b_->Kill(SIGTERM);
  EXPECT_EQ(b_->Exit(), 0);
  EXPECT_THAT(lease_->UntilDown(), HasSubstr("it left: SIGTERM"));
  manager_->Kill(SIGTERM);
  EXPECT_EQ(manager_->Exit(), 0);
  a_->Kill(SIGINT);
  EXPECT_EQ(a_->Exit(), 0);
}

TEST_F(ClusterTest, StatusTellsAll) {
  Start();
  ManagerStatus status = StatusOf(port_);
  for (int i = 0; i < 1000 && status.leases(0).report().programs_run() == 0; ++i) {
    absl::SleepFor(absl::Milliseconds(10));
    status = StatusOf(port_);
  }
  EXPECT_EQ(status.leases(0).report().programs_run(), 12u);
  EXPECT_EQ(status.slices(0).workers(0).engine_pid(), Engine(first_, 0).pid());
  const ManagerStatus own = StatusOf(PortOf(*a_));
  EXPECT_EQ(own.slices(0).workers(0).name(), "a");
  EXPECT_EQ(own.slices(0).workers(0).engine_pid(), Engine(first_, 0).pid());
}

TEST_F(ClusterTest, APortInUseAndWrongFlagsAreErrorsInWords) {
  manager_ = StartManager(0);
  port_ = PortOf(*manager_);
  auto second = StartManager(port_);
  EXPECT_EQ(second->Exit(), 1);
  EXPECT_THAT(second->Log(), HasSubstr(absl::StrCat("can't listen on 127.0.0.1:", port_, ": Address already in use")));
  Role none("none", {"manager", "0", "0"});
  EXPECT_EQ(none.Exit(), 1);
  EXPECT_THAT(none.Log(), HasSubstr("--instance_count=0"));
  Role nowhere("nowhere", {"worker", "a", "nowhere"});
  EXPECT_EQ(nowhere.Exit(), 1);
  EXPECT_THAT(nowhere.Log(), HasSubstr("--resource_manager_address='nowhere' is not host:port"));
}

TEST_F(ClusterTest, GarbageOnThePortsHurtsNobody) {
  Start();
  for (int port : {port_, PortOf(*a_)}) {
    for (const std::string& bytes : {RandomBytes(100000), std::string("GET / HTTP/1.1\r\n\r\n"), std::string(1, '\0'),
                                     "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + RandomBytes(10000)}) {
      const int fd = socket(AF_INET, SOCK_STREAM, 0);
      sockaddr_in address{
          .sin_family = AF_INET, .sin_port = htons(static_cast<uint16_t>(port)), .sin_addr = {htonl(INADDR_LOOPBACK)}};
      ASSERT_EQ(connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
      (void)send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      close(fd);
    }
  }
  const ManagerStatus status = StatusOf(port_);
  EXPECT_TRUE(status.slices(0).ready());
  EXPECT_TRUE(status.slices(1).ready());
  EXPECT_EQ(StatusOf(PortOf(*a_)).slices(0).workers(0).state(), "leased");
}

// argv: manager PORT SLICES | worker NAME MANAGER | engine ...
int RunRole(int argc, char** argv) {
  const std::string role = argv[1];
  const std::vector<std::string> args(argv, argv + argc);
  InitLogging(role);
  if (role == "engine") return RunFakeEngine(argc, argv);
  if (role == "manager") {
    manager::ManagerOptions options;
    options.bind_address = "127.0.0.1";
    options.server_port = std::stoi(args[2]);
    options.instance_count = std::stoi(args[3]);
    options.instance_type = "cpu:1x2";
    return manager::RunManagerRole(options);
  }
  WorkerOptions options;
  options.bind_address = "127.0.0.1";
  options.server_port = 0;
  options.name = args[2];
  options.manager_address = args[3];
  options.argv = {args[0], args[2], args[3]};
  return RunWorkerRole(options);
}

}  // namespace
}  // namespace parkway::worker

int main(int argc, char** argv) {
  const std::string role = argc > 1 ? argv[1] : "";
  if (role == "manager" || role == "worker" || role == "engine") return parkway::worker::RunRole(argc, argv);
  testing::InitGoogleTest(&argc, argv);
  // What killed workers leave behind lies here.
  std::string dir = testing::TempDir() + "/cluster-XXXXXX";
  if (mkdtemp(dir.data()) == nullptr) return 1;
  setenv("TMPDIR", dir.c_str(), 1);
  const int result = RUN_ALL_TESTS();
  std::filesystem::remove_all(dir);
  return result;
}
