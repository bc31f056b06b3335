// An executable of one session: what the compiler said of it, its types resolved once, and where it is loaded. It is
// loaded into a context by the first launch there, and again by itself after an engine was started anew.
//
// Owned by a session; used inside tasks of the core's executor only.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "runtime/engines.h"
#include "runtime/fair_shares.h"
#include "runtime/session.h"

namespace parkway::runtime {

class Program {
 public:
  struct Parameter {
    ifrt::DType dtype{};
    ifrt::Shape shape;  // global
    ifrt::ShardingPtr sharding;
    bool may_donate = false;
    ifrt::ShardingPtr accepted;  // the last one that was found equivalent
  };
  struct Output {
    ArraySpec spec;
    int64_t shard_bytes = 0;
  };

  // INVALID_ARGUMENT when what the compiler said doesn't fit the devices.
  static absl::StatusOr<std::unique_ptr<Program>> Make(std::shared_ptr<const CompiledProgram> compiled,
                                                       std::vector<int> devices, Engines* engines,
                                                       CoreOptions* options);

  // Tells the engines to forget it. The core's options outlive it.
  ~Program();
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  const CompiledProgram& compiled() const { return *compiled_; }
  const std::shared_ptr<const CompiledProgram>& compiled_ref() const { return compiled_; }
  const std::vector<int>& devices() const { return devices_; }
  const ifrt::DeviceListPtr& device_list() const { return device_list_; }
  const HostList& hosts() const { return hosts_; }
  bool spans_hosts() const { return hosts_.size() > 1; }
  std::vector<Parameter>& parameters() { return parameters_; }
  const std::vector<Output>& outputs() const { return outputs_; }
  // "program 'jit_step'".
  const std::string& Describe() const { return *label_; }
  const MadeBy& label() const { return label_; }

  // The id that engines know it by in that context, after telling those that don't.
  uint64_t EnsureLoaded(uint64_t context, uint64_t session);
  // What a launch takes of the devices, for the order between sessions.
  const LaunchWorkRef& work() const { return work_; }
  // What a launch holds until it has ended everywhere: the engines may still be pulling the executable's bytes when the
  // session has no more use for the program. Null when they went inside an operation.
  const std::shared_ptr<const void>& offered() const { return offered_; }

 private:
  struct Load {
    uint64_t id = 0;
    std::vector<uint64_t> incarnations;  // by position in hosts_
  };
  Program() = default;
  absl::Status ResolveParameters();
  absl::Status ResolveOutputs();

  Engines* engines_ = nullptr;
  CoreOptions* options_ = nullptr;
  std::shared_ptr<const CompiledProgram> compiled_;
  MadeBy label_;
  std::vector<int> devices_;
  ifrt::DeviceListPtr device_list_;
  HostList hosts_;
  std::vector<Parameter> parameters_;
  std::vector<Output> outputs_;
  LaunchWorkRef work_;
  absl::flat_hash_map<uint64_t, Load> loads_;  // by context
  Transfer transfer_;                          // the executable's bytes, when they are too many for an operation
  std::shared_ptr<const void> offered_;        // ends the offer of them
};

}  // namespace parkway::runtime
