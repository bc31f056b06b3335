#include "cli/flags.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace parkway::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class FlagsTest : public ::testing::Test {
 protected:
  FlagsTest() {
    flags_.Add("server_port", &port_, "port");
    flags_.Add("resource_manager_address", &address_, "where");
    flags_.Add("virtual_slices", &slices_, "slices");
    flags_.Add("enable_late_binding", &late_, "late");
    flags_.Add("connect_timeout", &timeout_, "timeout");
    flags_.AddLogFlags(&log_dir_);
  }
  absl::Status Parse(std::vector<std::string> args) { return flags_.Parse(args, &warnings_); }

  int64_t port_ = 29000;
  std::string address_, log_dir_;
  std::vector<std::string> slices_, warnings_;
  bool late_ = false;
  absl::Duration timeout_ = absl::Seconds(1);
  FlagSet flags_{"proxy_server"};
};

TEST_F(FlagsTest, BothForms) {
  ASSERT_TRUE(Parse({"--server_port=7", "--resource_manager_address", "h:1", "--virtual-slices=cpu:1x2,cpu:1x4"}).ok());
  EXPECT_EQ(port_, 7);
  EXPECT_EQ(address_, "h:1");
  EXPECT_THAT(slices_, ElementsAre("cpu:1x2", "cpu:1x4"));
  EXPECT_THAT(warnings_, IsEmpty());
}

TEST_F(FlagsTest, Bools) {
  ASSERT_TRUE(Parse({"--enable_late_binding"}).ok());
  EXPECT_TRUE(late_);
  ASSERT_TRUE(Parse({"--enable_late_binding=false"}).ok());
  EXPECT_FALSE(late_);
  ASSERT_TRUE(Parse({"--enable_late_binding", "true", "--server_port=8"}).ok());
  EXPECT_TRUE(late_);
  ASSERT_TRUE(Parse({"--noenable_late_binding", "--server_port=9"}).ok());
  EXPECT_FALSE(late_);
  EXPECT_EQ(port_, 9);
  EXPECT_THAT(Parse({"--enable_late_binding=maybe"}).message(), HasSubstr("takes true or false, not 'maybe'"));
}

TEST_F(FlagsTest, QuotesOfAManifestAreStripped) {
  ASSERT_TRUE(Parse({"--resource_manager_address='h:1'", "--server_port=\"31\""}).ok());
  EXPECT_EQ(address_, "h:1");
  EXPECT_EQ(port_, 31);
}

TEST_F(FlagsTest, Durations) {
  ASSERT_TRUE(Parse({"--connect_timeout=300s"}).ok());
  EXPECT_EQ(timeout_, absl::Seconds(300));
}

TEST_F(FlagsTest, GooglesFlagsWarn) {
  ASSERT_TRUE(Parse({"--gcs_scratch_location=gs://bucket/dir", "--temporary_flags_for_debugging=a=b;;;c=d",
                     "--tpu_premapped_buffer_size", "4294967296", "--enforce_kernel_ipv6_support=false",
                     "--megascale_grpc_enable_xor_tracer=false", "--pathways_device_type=NONE", "--xla_dump_to=/x",
                     "--xla_tpu_use_enhanced_launch_barrier"})
                  .ok());
  EXPECT_EQ(warnings_.size(), 8);
  EXPECT_THAT(warnings_[0], HasSubstr("--gcs_scratch_location has no effect"));
}

TEST_F(FlagsTest, FlagsOfAPrefixAreCollected) {
  std::vector<std::string> xla;
  FlagSet flags("proxy_server");
  flags.AddPrefix("xla_", &xla, "of XLA's");
  ASSERT_TRUE(flags.Parse({"--xla_a=1", "--xla-b", "--tpu_c=2", "--xla_d", "text"}, &warnings_).ok());
  EXPECT_THAT(xla, testing::ElementsAre("xla_a=1", "xla_b=true", "xla_d=text"));
  EXPECT_EQ(warnings_.size(), 1);
  EXPECT_THAT(flags.Help(), HasSubstr("--xla_*=VALUE"));
}

TEST_F(FlagsTest, AWrongFlagNamesTheNearest) {
  const absl::Status typo = Parse({"--sever_port=1"});
  EXPECT_EQ(typo.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(typo.message(), HasSubstr("parkway proxy_server: no flag --sever_port; did you mean --server_port?"));
  EXPECT_THAT(Parse({"--enable_late_bindnig"}).message(), HasSubstr("did you mean --enable_late_binding?"));
  EXPECT_THAT(Parse({"--zzzzzz=1"}).message(), HasSubstr("`parkway proxy_server --help` lists them"));
}

TEST_F(FlagsTest, WrongValues) {
  EXPECT_THAT(Parse({"--server_port=x1"}).message(), HasSubstr("--server_port takes a whole number, not 'x1'"));
  EXPECT_THAT(Parse({"--server_port"}).message(), HasSubstr("--server_port needs a value"));
  EXPECT_THAT(Parse({"serve"}).message(), HasSubstr("'serve' is no flag"));
}

TEST(ParseAddress, LeftOverVariableIsLocalhost) {
  std::vector<std::string> warnings;
  EXPECT_EQ(*ParseAddress("resource_manager_address", "$(PATHWAYS_HEAD):29001", &warnings), "localhost:29001");
  EXPECT_EQ(warnings.size(), 1);
  EXPECT_EQ(*ParseAddress("resource_manager_address", "h.js:29001", &warnings), "h.js:29001");
  EXPECT_FALSE(ParseAddress("resource_manager_address", "h.js", &warnings).ok());
  EXPECT_FALSE(ParseAddress("resource_manager_address", "h:99999", &warnings).ok());
}

}  // namespace
}  // namespace parkway::cli
