// How fuzzers cut their input into messages: each comes after two bytes of length (little-endian). What is left at the
// end counts as a message of its own, so that any bytes are some sequence.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <string>
#include <string_view>

namespace parkway::fuzz {

// Takes the next message off `input`, which is not empty.
inline std::string_view NextMessage(std::string_view& input) {
  size_t length = input.size();
  if (input.size() >= 2) {
    length = static_cast<uint8_t>(input[0]) | static_cast<size_t>(static_cast<uint8_t>(input[1])) << 8;
    input.remove_prefix(2);
  }
  const std::string_view message = input.substr(0, length);
  input.remove_prefix(message.size());
  return message;
}

// Ends the run as a finding.
inline void Require(bool holds, std::string_view what) {
  if (holds) return;
  std::cerr << "does not hold: " << what << std::endl;
  std::abort();
}

}  // namespace parkway::fuzz
