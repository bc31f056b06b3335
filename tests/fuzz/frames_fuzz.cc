// What comes over a link, cut into messages. The first byte says in which pieces the bytes come; the messages are those
// of the stream, and memory follows the bytes, not an announced length.
#include <algorithm>
#include <cstring>
#include <string>

#include "base/limits.h"
#include "fabric/frame_reader.h"
#include "messages.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  using namespace parkway::fuzz;
  using parkway::fabric::FrameReader;
  if (size == 0) return 0;
  const size_t step = size_t{bytes[0]} + 1;
  const std::string stream =
      std::string(parkway::fabric::kLinkPreface) + std::string(reinterpret_cast<const char*>(bytes) + 1, size - 1);
  FrameReader reader;
  size_t taken = parkway::fabric::kLinkPreface.size();
  for (size_t at = 0; at < stream.size();) {
    const FrameReader::Space space = reader.Prepare();
    Require(space.data != nullptr && space.size > 0, "there is room for the next bytes");
    const size_t count = std::min({step, space.size, stream.size() - at});
    std::memcpy(space.data, stream.data() + at, count);
    reader.Commit(count);
    at += count;
    Require(reader.capacity() <= 2 * stream.size() + (size_t{32} << 10), "memory follows the bytes");
    for (;;) {
      const auto next = reader.Next();
      if (!next.ok()) return 0;
      if (!next->has_value()) break;
      taken += parkway::fabric::kFrameHeaderBytes;
      Require(**next == std::string_view(stream).substr(taken, (*next)->size()), "messages are the stream's");
      taken += (*next)->size();
    }
  }
  return 0;
}
