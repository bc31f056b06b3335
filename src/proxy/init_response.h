// What a client is told of its devices when a session begins: CPU devices named as JAX names its own, each with three
// kinds of memory, and the attributes by which programs tell slices and hosts apart. Pure.
#pragma once

#include <cstdint>

#include "proto/ifrt/ifrt_service.pb.h"
#include "runtime/topology.h"

namespace parkway::proxy {

// The memory kinds of each device, the default first; a kind's number is its position.
inline constexpr const char* kMemoryKinds[] = {"device", "pinned_host", "unpinned_host"};
bool IsMemoryKind(const std::string& kind);

void FillInitResponse(const runtime::Topology& topology, uint64_t session_id, xla::ifrt::proxy::InitResponse* response);

}  // namespace parkway::proxy
