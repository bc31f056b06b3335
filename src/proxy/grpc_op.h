// The completion queue's tags, by the names that the service's calls use.
#pragma once

#include "base/completion_op.h"

namespace parkway::proxy {

using Tag = CompletionTag;
template <typename Call, void (Call::*method)(bool)>
using Op = CompletionOp<Call, method>;

}  // namespace parkway::proxy
