// What the manager knows and decides: which workers live, how they form physical slices, which proxy leases which
// slices, how the leases' engines are. Messages and the clock come in, messages go out through ManagerOutput; no
// socket, no thread and no lock here, so that tests drive it under a simulated clock. The owner calls everything from
// tasks of one Executor.
//
// Workers. A worker is its name; a second one of that name is refused while the first lives. It takes a seat (slice,
// host), the one it had before if nobody else got it. A worker is lost when its stream ends or it is silent for
// limits::kHeartbeatTimeout; its seat stays its own until a worker without a seat needs one.
//
// Leases. All slices of a lease are bound at once, first come first served; a waiting lease that can be met by this
// cluster keeps what it could use from those behind it. A lease ends with its proxy's stream. A host of a lease that
// was reported down never comes up again with the same engine: what the proxy gave up stays given up.
//
// A manager that starts anew knows what is in its record, if it has one: seats, engines that were given up, leases and
// their order. For limits::kManagerResumeWindow engines that workers bring along are left alone, and a proxy that asks
// for its old lease gets it back with them; after that they are stopped.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/executor.h"
#include "proto/parkway/manager.pb.h"

namespace parkway::manager {

using StreamId = uint64_t;  // never 0

// Where messages go. Calls must not come back into ManagerState.
class ManagerOutput {
 public:
  virtual ~ManagerOutput() = default;
  virtual void ToWorker(StreamId stream, const ManagerToWorker& message) = 0;
  virtual void ToProxy(StreamId stream, const ManagerToProxy& message) = 0;
  // Nothing more comes from or goes to this stream; what was sent before arrives first.
  virtual void End(StreamId stream, const absl::Status& why) = 0;
};

struct ManagerStateOptions {
  SliceType expected_type;  // no platform: each worker is a slice of its own, whatever it has
  int expected_slices = 1;
  std::function<uint64_t()> random;                // never 0
  ManagerRecord record;                            // what the manager before it wrote down; empty: there was none
  std::function<void(const ManagerRecord&)> save;  // after changes; null: nothing is written down
};

class ManagerState {
 public:
  ManagerState(Executor* executor, ManagerStateOptions options, ManagerOutput* output);
  ~ManagerState();
  ManagerState(const ManagerState&) = delete;

  // Streams are numbered by the caller, workers and proxies together. The first message says who it is.
  void OnWorkerOpened(StreamId stream);
  void OnWorker(StreamId stream, const WorkerMessage& message);
  void OnProxyOpened(StreamId stream);
  void OnProxy(StreamId stream, const ProxyMessage& message);
  void OnClosed(StreamId stream, const std::string& why);

  ManagerStatus Status() const;
  // NOT_FOUND when no proxy holds that lease.
  absl::Status Cancel(const CancelRequest& request);

 private:
  struct Stream {
    bool is_worker = false;
    absl::Time heard;
    std::string worker;  // after its hello
    uint64_t lease = 0;  // after its request
  };
  struct Worker {
    WorkerHello hello;
    StreamId stream = 0;  // 0: lost
    absl::Status lost;    // why
    std::string slice;
    int host = 0;
  };
  // A seat of a slice, with the state of its engine. `engine.endpoint` outlives `engine.up`: it says which one was
  // given up.
  struct Host {
    std::string worker;  // empty: nobody came yet
    EngineState engine;
  };
  struct Slice {
    std::string name;
    SliceType type;
    std::vector<Host> hosts;
    uint64_t lease = 0;
    uint64_t orphan = 0;  // lease of engines that came with their workers, until its proxy asks or the window ends
  };
  struct Lease {
    uint64_t id = 0;
    uint64_t epoch = 0;  // its place among all leases of this instance
    std::string token;
    StreamId stream = 0;
    LeaseRequest request;
    std::vector<Slice*> slices;  // by virtual index; empty: waiting
    std::string waiting_for;     // as last sent
    bool dirty = true;           // the proxy has not been told of the latest change
    bool resuming = false;       // taken over; told when all its workers are back or the window ends
    ProxyReport report;
  };

  // Workers.
  void Join(StreamId stream, const WorkerHello& hello);
  absl::Status CheckHello(const WorkerHello& hello) const;
  absl::StatusOr<SliceType> TypeOfWorker(const WorkerHello& hello) const;
  struct SeatRef {
    Slice* slice = nullptr;
    int host = 0;
  };
  absl::StatusOr<SeatRef> FindSeat(const WorkerHello& hello, const SliceType& type);
  absl::StatusOr<SeatRef> SeatInSlice(const WorkerHello& hello, const SliceType& type, const std::string& slice,
                                      int wanted);
  absl::StatusOr<SeatRef> SeatByArrival(const SliceType& type);
  int SliceLimit() const;
  absl::StatusOr<Slice*> AddSlice(const std::string& name, const SliceType& type);
  void Reconcile(Worker& worker, const WorkerHello& hello);
  void OnEngineState(const Worker& worker, const EngineState& state);
  void Forget(const std::string& name);
  void Lose(Worker& worker, const std::string& why);
  bool Alive(const Host& host) const;
  bool Ready(const Slice& slice) const;
  Host& HostOf(const Worker& worker);
  Slice* FindSlice(const std::string& name);

  // Leases.
  void Request(StreamId stream, const LeaseRequest& request);
  bool TakeOver(StreamId stream, const LeaseRequest& request);
  bool CanResume(const Placement& held);
  void Resume(Lease& lease, const Placement& held);
  bool IsRemembered(const Placement& held) const;
  bool EarlierMayComeBack(const Lease& lease) const;
  void EndLease(uint64_t id, const std::string& why);
  void ForwardRestart(uint64_t lease, const RestartEngine& restart);
  void StartEngine(const Slice& slice, const Host& host, const Lease& lease);
  void StopEngine(const Host& host, uint64_t lease, const std::string& why);
  void PlaceWaiting();
  bool Place(Lease& lease, std::set<const Slice*>* kept);
  bool CanEverPlace(const Lease& lease) const;
  int Capacity(const SliceType& type) const;
  std::string WhyWaiting(const Lease& lease, int before) const;
  void SendPlacement(Lease& lease);

  // The record (record.cc).
  void Recall();
  ManagerRecord Record() const;
  void SaveSoon();

  // After every event: places leases, tells proxies what changed, logs what became ready.
  void Settle();
  void EndResumeWindow();
  void CheckHealth();
  void EndStream(StreamId stream, const absl::Status& why);
  void RefuseWorker(StreamId stream, const absl::Status& why);
  void RefuseProxy(StreamId stream, const absl::Status& why);
  bool Resuming() const { return executor_->Now() < resume_until_; }
  // "worker a:29005 (host 0 of slice-1)"
  std::string Describe(const Worker& worker) const;

  Executor* executor_;
  ManagerStateOptions options_;
  ManagerOutput* output_;
  std::map<StreamId, Stream> streams_;
  std::map<std::string, Worker> workers_;
  std::vector<std::unique_ptr<Slice>> slices_;  // by name, slice-2 before slice-10
  std::map<uint64_t, Lease> leases_;
  std::vector<uint64_t> waiting_;  // by epoch
  uint64_t instance_ = 0;
  uint64_t starts_ = 1;
  uint64_t next_epoch_ = 1;
  std::map<uint64_t, LeaseRecord> remembered_;  // of the manager before, until their proxies ask or the window ends
  absl::Time resume_until_;
  absl::Time last_check_;
  TimerId health_timer_ = 0;
  TimerId resume_timer_ = 0;
  TimerId save_timer_ = 0;  // 0: all is written down
  int ready_slices_ = 0;
};

// Lease ids in log lines.
std::string Hex(uint64_t id);

}  // namespace parkway::manager
