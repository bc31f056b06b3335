// Every limit on a queue, a buffer or a wait, in one place. What a user may change has a flag (src/cli/roles.cc) whose
// default stands here; docs/limits.md says what happens at each. Sizes are bytes.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/time/time.h"

namespace parkway::limits {

// ---- What a client may send -------------------------------------------------------------------------------------
inline constexpr int kMaxRank = 64;                          // dimensions of an array
inline constexpr int64_t kMaxArrayBytes = int64_t{1} << 46;  // one array, all shards
inline constexpr int kMaxDevicesPerSharding = 1 << 17;
inline constexpr int kMaxTileRank = 2 * kMaxRank;       // dimensions of a grid of tiles, of a mesh
inline constexpr size_t kShardingCacheBytes = 4 << 20;  // wire forms of shardings that one session remembers
inline constexpr int kMaxArgumentsPerLaunch = 1 << 16;
inline constexpr int64_t kMaxProgramBytes = int64_t{2} << 30;  // one program, as it comes
inline constexpr size_t kMaxPluginProgramBytes = 16 << 20;     // one request in JSON
inline constexpr int kMaxPluginProgramDepth = 8;               // of that JSON
inline constexpr int kMaxHandlesPerRequest = 1 << 20;
inline constexpr int kMaxSessionsPerProxy = 1024;
inline constexpr int64_t kMaxHostBufferBytes = int64_t{1} << 40;  // announced size of one host buffer
inline constexpr int kMaxHostBufferStreams = 1 << 16;             // Stores and Lookups at once, all sessions
inline constexpr absl::Duration kHostBufferStall =
    absl::Seconds(120);  // a Store that brings no byte for so long is dropped
inline constexpr int64_t kUnclaimedHostBytes =
    int64_t{64} << 30;  // of one session's host buffers that no request named yet, and of those read and not fetched
inline constexpr int kMaxQueuedReplies = 1 << 14;                     // of one session; more stops reading its requests
inline constexpr size_t kRepliesPerFlush = 64;                        // that may be held back together
inline constexpr absl::Duration kReplyFlush = absl::Milliseconds(3);  // for replies that nobody waits for
inline constexpr size_t kLookupChunkBytes = size_t{4} << 20;          // one message of a host buffer that is read
inline constexpr size_t kLookupOneMessageBytes = 256 << 10;           // buffers this small go out with their status
inline constexpr size_t kMaxStatusInHeader = 2 << 10;  // text of an error that ends an RPC; encoded, three times that
inline constexpr int kEarlyReadReplies = 64;  // of one session: reads whose bytes the client may wait for in a Lookup
inline constexpr absl::Duration kClientKeepalive = absl::Seconds(10);  // a client's machine that vanished is noticed

// ---- Credits of one session: taken before an operation is ordered ------------------------------------------------
inline constexpr int kSessionOpsInFlight = 4096;
inline constexpr int64_t kSessionBytesInFlight = int64_t{8} << 30;

// ---- Links and bulk transfers -------------------------------------------------------------------------------------
inline constexpr size_t kInlineReadBytes = 64 << 10;        // results this small ride in the completion
inline constexpr size_t kInlinePutBytes = 64 << 10;         // host bytes this small ride in the operation
inline constexpr size_t kMaxFrameBytes = size_t{1} << 30;   // one framed message
inline constexpr size_t kLinkQueueBytes = size_t{1} << 30;  // unsent bytes of one link; more closes it
inline constexpr size_t kBulkChunkBytes = 1 << 20;
inline constexpr size_t kWarmBlockBytes = 512 << 20;    // shared memory that one process keeps to write on again
inline constexpr int kWarmBlockTries = 8;               // of those blocks, before a new one is made
inline constexpr size_t kSmallestWarmBlock = 1 << 20;   // smaller blocks are freed
inline constexpr int kMaxConnectionsPerPort = 4096;     // more are closed at the door
inline constexpr int kMaxPullsPerConnection = 1 << 16;  // transfers that one peer waits for at once
inline constexpr int kRememberedDrops = 1 << 16;        // dropped transfers whose late pulls are refused at once
inline constexpr absl::Duration kConnectTimeout = absl::Seconds(5);
inline constexpr absl::Duration kBulkStall = absl::Seconds(30);      // a transfer that brings no byte for so long fails
inline constexpr absl::Duration kTransferWait = absl::Seconds(120);  // for bytes that were promised

// ---- Engines ------------------------------------------------------------------------------------------------------
inline constexpr int64_t kProgramCacheBytes = int64_t{256} << 20;  // serialized executables kept for another load
inline constexpr int kMaxQueuedOps = 1 << 17;                      // operations of one engine that wait or run
inline constexpr int kMaxHeldKeys = 1 << 16;                       // coordination keys that came before their context
inline constexpr int kMaxClosedContexts = 1024;                    // whose causes are remembered
inline constexpr int kHostPoolThreads = 4;                         // for copies and loads beside the launch threads
inline constexpr absl::Duration kInlineLaunch =
    absl::Microseconds(200);                        // launches that return so fast run on the reader
inline constexpr int kMaxUnknownCallers = 64;       // connections of an engine that haven't said who they are
inline constexpr size_t kMaxHelloBytes = 64 << 10;  // what such a connection may send
inline constexpr absl::Duration kHelloWait = absl::Seconds(5);  // and how long it may take
inline constexpr absl::Duration kEngineUnclaimed =
    absl::Seconds(120);  // an engine that no proxy calls for so long exits
inline constexpr absl::Duration kInlineLaunchPause = absl::Milliseconds(5);  // that a quick launch may be kept waiting
inline constexpr absl::Duration kLazyEventDelay = absl::Milliseconds(50);    // for events that nobody waits for
inline constexpr int kFewestXlaPoolThreads = 4;                              // of each pool of a CPU client
inline constexpr int kEngineWaiters = 256;                                   // threads that wait for launches to end
inline constexpr int64_t kDeleteAtOnceBytes = 256 << 10;  // arrays of so many bytes together are freed at once,
inline constexpr int64_t kDeleteAtOnce = 256;             // and so many of any size; fewer and smaller ones
inline constexpr absl::Duration kDeleteDelay = absl::Milliseconds(2);  // within so long
inline constexpr absl::Duration kDropDelay = absl::Milliseconds(5);    // dropped arrays are freed within so long
inline constexpr absl::Duration kCutPeriod = absl::Milliseconds(5);    // between cuts of a context that closes
inline constexpr absl::Duration kSlowClose = absl::Seconds(5);         // after so long a closing context is reported

// ---- The arena of a worker ------------------------------------------------------------------------------------------
inline constexpr int kArenaBlocksPerSession = 1 << 13;  // shards in host memory; each is a mapping of the engine
inline constexpr int kArenaBlocks = 1 << 15;            // of all sessions
inline constexpr int kArenaBlocksPerMessage = 64;       // that a new engine takes over at once
inline constexpr size_t kArenaMessageBytes = 64 << 10;
inline constexpr absl::Duration kArenaAnswer = absl::Seconds(10);  // a worker that takes longer is given up on

// ---- Health -------------------------------------------------------------------------------------------------------
inline constexpr absl::Duration kHeartbeatPeriod = absl::Milliseconds(300);
inline constexpr absl::Duration kHeartbeatTimeout = absl::Milliseconds(2500);  // no heartbeat for so long: lost
inline constexpr absl::Duration kCauseWait = absl::Seconds(4);  // a peer's complaint waits so long for its cause
inline constexpr absl::Duration kRetryPeriod = absl::Milliseconds(200);
inline constexpr absl::Duration kWaitLogPeriod = absl::Seconds(10);  // a role that waits for another says so this often
inline constexpr absl::Duration kEngineStartTimeout = absl::Seconds(120);
inline constexpr absl::Duration kEngineRestartDelay =
    absl::Seconds(5);                                                 // longest pause before an engine that keeps dying
inline constexpr absl::Duration kEngineStopGrace = absl::Seconds(2);  // from SIGTERM to SIGKILL

// ---- A cluster on one machine (`parkway up`) ------------------------------------------------------------------------
inline constexpr absl::Duration kRestartPause =
    absl::Milliseconds(200);  // before a role that died starts again; doubles
inline constexpr absl::Duration kRestartPauseLongest = absl::Seconds(5);
inline constexpr int kStartTries = 3;                               // of a role, before the cluster was ever ready
inline constexpr absl::Duration kRoleStopGrace = absl::Seconds(4);  // from SIGTERM to SIGKILL

// ---- Manager ------------------------------------------------------------------------------------------------------
inline constexpr absl::Duration kLeaseTimeout =
    absl::Seconds(10);  // a proxy that is silent for so long loses its lease
inline constexpr absl::Duration kManagerResumeWindow = absl::Seconds(10);  // after its start: old leases are taken over
inline constexpr absl::Duration kRefusedWorkerWait =
    absl::Seconds(10);                              // a refused worker tries for so long, then exits
inline constexpr int kMaxManagerStreams = 1 << 14;  // workers and proxies connected at once
inline constexpr int kManagerStreamQueue = 1024;    // unsent messages of one; more closes it
inline constexpr int kMaxSlicesPerLease = 4096;
inline constexpr int kMaxHostsPerSlice = 1 << 14;
inline constexpr int kMaxDevicesPerHost = 4096;
inline constexpr int kMaxNameBytes = 512;  // a worker's name, a slice's, an owner's

// ---- The core ------------------------------------------------------------------------------------------------------
inline constexpr absl::Duration kHostReturnWait = absl::Seconds(15);     // for an engine that is being started again
inline constexpr absl::Duration kEvictionDrain = absl::Seconds(2);       // for others' work on an engine that is to go
inline constexpr absl::Duration kEvictionCopies = absl::Seconds(30);     // to copy arrays off an engine that is to go
inline constexpr int kCrashesUntilRefused = 2;                           // of an engine, by one program
inline constexpr int kContextAttempts = 3;                               // to open one for an operation
inline constexpr int kMaxOpenContexts = 32;                              // more close the one that was idle longest
inline constexpr size_t kRememberedCrashes = 4096;                       // programs that crashed an engine
inline constexpr size_t kLargestHolders = 5;                             // of device memory, that an error names
inline constexpr size_t kReportedSessions = 64;                          // in `parkway status`
inline constexpr absl::Duration kAloneAhead = absl::Milliseconds(50);    // work with a device that one session uses
inline constexpr size_t kAloneLaunches = 16;                             // or so many launches
inline constexpr absl::Duration kBacklogAhead = absl::Milliseconds(10);  // with one that several have work waiting for
inline constexpr absl::Duration kSharedAhead = absl::Milliseconds(2);    // work with a device that several use
inline constexpr absl::Duration kShareMemory = absl::Seconds(1);  // a device is shared so long after another's launch
inline constexpr absl::Duration kShareWait = absl::Seconds(2);    // launches that run for longer hold up nobody
inline constexpr absl::Duration kUnknownRunTime = absl::Milliseconds(3);  // of a program that has not run yet

// ---- Programs -----------------------------------------------------------------------------------------------------
inline constexpr absl::Duration kEndlessProgramGrace = absl::Seconds(10);  // after its session ended, or cancelled it
inline constexpr absl::Duration kCompileTimeout = absl::Seconds(300);
inline constexpr int64_t kCompileMemoryBytes = int64_t{8} << 30;
inline constexpr int kCompilers = 2;                              // compiler processes kept warm
inline constexpr int kMaxCompilers = 8;                           // while slow compiles hold them up
inline constexpr absl::Duration kSlowCompile = absl::Seconds(5);  // so long a compile may keep others waiting
inline constexpr int kCompileQueue = 1024;                        // programs waiting for a compiler
inline constexpr int64_t kCompileQueueBytes = int64_t{4} << 30;   // of those programs
inline constexpr int64_t kCompileCacheBytes = int64_t{1} << 30;   // compiled programs kept for a repeat
inline constexpr int kMaxContextRanks = 128;                      // devices of one CPU program that spans hosts
inline constexpr int kMaxSimDevices = 2048;                       // devices of one program of simulated engines

}  // namespace parkway::limits
