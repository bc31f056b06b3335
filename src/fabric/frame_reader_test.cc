#include "fabric/frame_reader.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "base/limits.h"

namespace parkway::fabric {
namespace {

std::string Encode(uint32_t length, const std::string& body) {
  std::string bytes(4, '\0');
  for (int i = 0; i < 4; ++i) bytes[i] = static_cast<char>(length >> (8 * i));
  return bytes + body;
}
std::string Encode(const std::string& body) { return Encode(static_cast<uint32_t>(body.size()), body); }

// Feeds `stream` in pieces of `step` bytes; returns the messages, or the error.
absl::StatusOr<std::vector<std::string>> Feed(FrameReader& reader, const std::string& stream, size_t step) {
  std::vector<std::string> messages;
  for (size_t at = 0; at < stream.size();) {
    const auto space = reader.Prepare();
    const size_t n = std::min({step, space.size, stream.size() - at});
    std::memcpy(space.data, stream.data() + at, n);
    reader.Commit(n);
    at += n;
    for (;;) {
      auto next = reader.Next();
      if (!next.ok()) return next.status();
      if (!next->has_value()) break;
      messages.emplace_back(**next);
    }
  }
  return messages;
}

TEST(FrameReaderTest, CutsHoweverTheBytesCome) {
  std::vector<std::string> sent;
  std::string stream(kLinkPreface);
  for (size_t size : {1, 3, 100, 16380, 16384, 20000, 5, 70000, 1, 3000000, 2}) {
    sent.push_back(std::string(size, static_cast<char>('a' + sent.size())));
    stream += Encode(sent.back());
  }
  for (size_t step : {1, 2, 7, 1000, 65536, 10000000}) {
    FrameReader reader;
    const auto got = Feed(reader, stream, step);
    ASSERT_TRUE(got.ok()) << got.status();
    EXPECT_EQ(*got, sent) << step;
    EXPECT_FALSE(reader.holds_part());
  }
}

TEST(FrameReaderTest, MemoryFollowsTheBytesNotTheLength) {
  FrameReader reader;
  const std::string stream = std::string(kLinkPreface) + Encode(limits::kMaxFrameBytes, std::string(40000, 'x'));
  ASSERT_TRUE(Feed(reader, stream, 1 << 20).ok());
  EXPECT_LE(reader.capacity(), 2 * stream.size());
  EXPECT_TRUE(reader.holds_part());
}

TEST(FrameReaderTest, GivesLargeBuffersBack) {
  FrameReader reader;
  ASSERT_TRUE(Feed(reader, std::string(kLinkPreface) + Encode(std::string(10 << 20, 'x')), 1 << 20).ok());
  EXPECT_GT(reader.capacity(), size_t{10} << 20);
  ASSERT_TRUE(Feed(reader, Encode("y"), 100).ok());
  EXPECT_LT(reader.capacity(), size_t{1} << 20);
}

TEST(FrameReaderTest, RefusesGarbage) {
  const std::string preface(kLinkPreface);
  for (const std::string& stream :
       {std::string("GET / HTTP/1.1\r\n\r\n"), std::string("\x16\x03\x01"), std::string("PKLx"),
        preface + Encode(0, ""), preface + Encode(limits::kMaxFrameBytes + 1, ""),
        preface + Encode(0xFFFFFFFFu, "zzzz")}) {
    for (size_t step : {1, 100}) {
      FrameReader reader;
      EXPECT_EQ(Feed(reader, stream, step).status().code(), absl::StatusCode::kInvalidArgument) << stream;
    }
  }
}

}  // namespace
}  // namespace parkway::fabric
