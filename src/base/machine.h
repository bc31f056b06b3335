// What a process has to know about the machine it runs on.
#pragma once

#include <cstdint>
#include <string>

namespace parkway {

// Which processes can share memory: those with the same machine identity (boot id, pid namespace, user). Cached after
// the first call; any thread.
const std::string& MachineIdentity();

// Bytes of memory that can be had without swapping: the least of what the kernel and the control group leave. An
// estimate; tens of microseconds.
int64_t AvailableMemoryBytes();

// This machine's address on the way to `target` ("host:port"), in brackets for IPv6; empty while the name can't be
// resolved or reached.
std::string AddressTowards(const std::string& target);

// What this machine calls itself; "localhost" where it has no name.
std::string HostName();

// The features of its processors as the kernel names them, on which generated code depends; empty when unknown.
std::string CpuFeatures();

// Lets this process open as many files as it may; each block of shared memory is one.
void RaiseOpenFileLimit();

}  // namespace parkway
