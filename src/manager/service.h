// The manager's gRPC server: ManagerState behind streams. Streams come and go on gRPC's threads; the state is touched
// by one executor's tasks alone.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"

namespace parkway {
class SliceType;
}

namespace parkway::manager {

class ManagerServer {
 public:
  // `type` without a platform: any. `state_dir`: where it writes down what its successor must know (manager/store.h);
  // empty: nowhere. UNAVAILABLE when the port or the directory can't be had.
  static absl::StatusOr<std::unique_ptr<ManagerServer>> Start(const std::string& host, int port, const SliceType& type,
                                                              int slices, const std::string& state_dir = "");
  ~ManagerServer();  // ends all streams
  ManagerServer(const ManagerServer&) = delete;

  int port() const;

 private:
  class Impl;
  explicit ManagerServer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace parkway::manager
