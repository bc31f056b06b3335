#include "manager/role.h"

#include "base/shutdown.h"
#include "glog/logging.h"
#include "manager/service.h"
#include "manager/slice_type.h"
#include "proto/parkway/manager.pb.h"

namespace parkway::manager {

int RunManagerRole(const ManagerOptions& options) {
  ShutdownSignals signals;
  for (size_t i = 0; i < options.argv.size(); ++i) LOG(INFO) << "argv[" << i << "]: '" << options.argv[i] << "'";
  SliceType type;
  if (!options.instance_type.empty()) {
    absl::StatusOr<SliceType> parsed = ParseSliceType(options.instance_type);
    if (!parsed.ok()) {
      LOG(ERROR) << "The manager can't start: --instance_type: " << parsed.status().message();
      return 1;
    }
    type = *std::move(parsed);
  }
  if (options.instance_count < 1) {
    LOG(ERROR) << "The manager can't start: --instance_count=" << options.instance_count << ", at least 1 is wanted";
    return 1;
  }
  auto server =
      ManagerServer::Start(options.bind_address, options.server_port, type, options.instance_count, options.state_dir);
  if (!server.ok()) {
    LOG(ERROR) << "The manager can't start: " << server.status().message();
    return 1;
  }
  LOG(INFO) << "Pathways Server serving on " << options.bind_address << ":" << (*server)->port();
  LOG(INFO) << "The manager ends: " << signals.Wait();
  return 0;
}

}  // namespace parkway::manager
