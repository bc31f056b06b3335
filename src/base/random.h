// Random numbers that nobody can guess, for ids whose knowledge is a permission: sessions, transfers, lease tokens.
// What a simulation must be able to replay does not come from here. Any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace parkway {

uint64_t RandomUint64();  // never 0
std::string RandomBytes(size_t n);

}  // namespace parkway
