#include <gtest/gtest.h>
#include <sys/resource.h>

#include <set>

#include "base/machine.h"
#include "base/random.h"
#include "base/status.h"
#include "base/status_wire.h"
#include "proto/parkway/engine.pb.h"

namespace parkway {
namespace {

TEST(StatusTest, AnnotateKeepsCodeAndPayload) {
  absl::Status status = absl::AbortedError("it broke");
  status.SetPayload("parkway/x", absl::Cord("y"));
  const absl::Status annotated = Annotate(status, "slice 1");
  EXPECT_EQ(annotated.code(), absl::StatusCode::kAborted);
  EXPECT_EQ(annotated.message(), "slice 1: it broke");
  EXPECT_EQ(annotated.GetPayload("parkway/x"), absl::Cord("y"));
  EXPECT_TRUE(Annotate(absl::OkStatus(), "slice 1").ok());
}

absl::StatusOr<int> Half(int n) {
  if (n % 2 != 0) return absl::InvalidArgumentError("odd");
  return n / 2;
}
absl::StatusOr<int> Quarter(int n) {
  PARKWAY_ASSIGN_OR_RETURN(const int half, Half(n));
  PARKWAY_ASSIGN_OR_RETURN(const int quarter, Half(half));
  return quarter;
}

TEST(StatusTest, AssignOrReturn) {
  EXPECT_EQ(*Quarter(8), 2);
  EXPECT_EQ(Quarter(6).status().message(), "odd");
}

TEST(StatusWireTest, RoundTripsEveryCode) {
  for (int code = 1; code <= 16; ++code) {
    const absl::Status status(static_cast<absl::StatusCode>(code), "why");
    EXPECT_EQ(FromProto(ToProto(status)), status);
  }
  EXPECT_TRUE(FromProto(ToProto(absl::OkStatus())).ok());
}

TEST(StatusWireTest, UnknownCodesAreErrors) {
  StatusProto proto;
  for (int code : {-1, 17, 1 << 30}) {
    proto.set_code(code);
    EXPECT_EQ(FromProto(proto).code(), absl::StatusCode::kUnknown);
  }
}

TEST(StatusWireTest, TextBecomesUtf8) {
  const std::string good = "gr\xC3\xBC\xC3\x9F \xE2\x82\xAC \xF0\x9F\x98\x80";
  EXPECT_EQ(ToProto(absl::AbortedError(good)).message(), good);
  // A lone continuation byte, a cut sequence, an overlong form, a surrogate, one beyond the last code point.
  for (const char* bad : {"\x80", "a\xC3", "\xC0\xAF", "\xED\xA0\x80", "\xF4\x90\x80\x80", "\xE2\x82"}) {
    StatusProto proto = ToProto(absl::AbortedError(bad)), parsed;
    ASSERT_TRUE(parsed.ParseFromString(proto.SerializeAsString())) << proto.message();
    EXPECT_NE(parsed.message().find('?'), std::string::npos);
  }
}

TEST(RandomTest, IdsDiffer) {
  std::set<uint64_t> seen;
  for (int i = 0; i < 1000; ++i) seen.insert(RandomUint64());
  EXPECT_EQ(seen.size(), 1000u);
  EXPECT_EQ(RandomBytes(33).size(), 33u);
  EXPECT_NE(RandomBytes(16), RandomBytes(16));
}

TEST(MachineTest, Facts) {
  EXPECT_EQ(MachineIdentity(), MachineIdentity());
  EXPECT_GT(MachineIdentity().size(), 10u);
  EXPECT_GT(AvailableMemoryBytes(), 1 << 20);
  RaiseOpenFileLimit();
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  EXPECT_EQ(limit.rlim_cur, limit.rlim_max);
}

}  // namespace
}  // namespace parkway
