// What is inside a Fabric: the loop of the links, and that of bulk transfers, which starts when it is first asked for.
#pragma once

#include <memory>
#include <mutex>

#include "fabric/link.h"
#include "fabric/loop.h"

namespace parkway::fabric {

struct Fabric::Impl {
  std::shared_ptr<Loop> loop = std::make_shared<Loop>("fabric");

  std::shared_ptr<Loop> BulkLoop();

  std::mutex mutex;
  std::shared_ptr<Loop> bulk_loop;  // null until it is first asked for
};

}  // namespace parkway::fabric
