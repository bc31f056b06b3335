#include "cli/status_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "proto/parkway/manager.pb.h"

namespace parkway::cli {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;

ManagerStatus TwoSlicesOneDown() {
  ManagerStatus status;
  status.set_expected_slices(3);
  for (int i = 0; i < 2; ++i) {
    SliceStatus* slice = status.add_slices();
    slice->set_name("slice-" + std::to_string(i));
    slice->mutable_type()->set_platform("cpu");
    slice->mutable_type()->set_hosts(1);
    slice->mutable_type()->set_devices_per_host(4);
    slice->set_ready(i == 0);
    WorkerStatus* worker = slice->add_workers();
    worker->set_name("host-" + std::to_string(i));
    worker->set_devices(4);
    worker->set_alive(i == 0);
    worker->set_state(i == 0 ? "leased" : "lost: no heartbeat");
  }
  LeaseStatus* lease = status.add_leases();
  lease->set_owner("127.0.0.1:29000");
  *lease->add_slices() = status.slices(0).type();
  lease->set_waiting_for("1 more slice of cpu:1x4");
  lease->mutable_report()->set_sessions(2);
  lease->mutable_report()->set_programs_run(71);
  lease->mutable_report()->set_bytes_held(3 << 20);
  SessionReport* session = lease->mutable_report()->add_by_session();
  session->set_client("ipv4:10.0.0.9:1234");
  session->set_bytes_held(3 << 20);
  session->set_session(3);
  session->set_launches(4);
  session->set_program("program 'jit_step'");
  session->set_running_seconds(61);
  lease->set_epoch(7);
  return status;
}

TEST(StatusText, CountsWhatLives) {
  const std::string text = StatusText(TwoSlicesOneDown(), {});
  EXPECT_THAT(text, HasSubstr("devices 4  hosts 1  sessions 2  programs run 71"));
  EXPECT_THAT(text, HasSubstr("bytes held 3.0 MiB"));
  EXPECT_THAT(text, HasSubstr("lost: no heartbeat"));
  EXPECT_THAT(text, HasSubstr("(1 slices have not come yet)"));
  EXPECT_THAT(text, HasSubstr("waiting for 1 more slice of cpu:1x4"));
}

TEST(StatusText, JsonHasTheSame) {
  const auto json = nlohmann::json::parse(StatusJson(TwoSlicesOneDown(), {.name = "default"}));
  EXPECT_EQ(json["devices"], 4);
  EXPECT_EQ(json["programs_run"], 71);
  EXPECT_EQ(json["bytes_held"], 3 << 20);
  EXPECT_EQ(json["leases"][0]["by_session"][0]["client"], "ipv4:10.0.0.9:1234");
  EXPECT_EQ(json["leases"][0]["by_session"][0]["bytes_held"], 3 << 20);
  EXPECT_EQ(json["leases"][0]["by_session"][0]["session"], "7.3");
  EXPECT_EQ(json["leases"][0]["by_session"][0]["launches"], 4);
  EXPECT_EQ(json["leases"][0]["by_session"][0]["program"], "program 'jit_step'");
  EXPECT_EQ(json["slices"][1]["ready"], false);
  EXPECT_EQ(json["slices"][0]["type"], "cpu:1x4");
  EXPECT_EQ(json["leases"][0]["placed"], false);
}

TEST(StatusText, ListsSessionsWithWhatTheyRun) {
  const std::string text = SessionsText(TwoSlicesOneDown());
  EXPECT_THAT(text, ContainsRegex("7\\.3 +ipv4:10\\.0\\.0\\.9:1234 +4 +3\\.0 MiB +program 'jit_step' for 61 s"));
  EXPECT_THAT(text, HasSubstr("(1 more of the proxy 127.0.0.1:29000)"));
  EXPECT_THAT(StatusText(TwoSlicesOneDown(), {}), HasSubstr(text));
  EXPECT_EQ(SessionsText(ManagerStatus()), "");
}

TEST(SessionIds, AreALeaseAndANumber) {
  const auto id = ParseSessionId("7.3");
  ASSERT_TRUE(id.ok());
  EXPECT_EQ(id->lease_epoch, 7u);
  EXPECT_EQ(id->session, 3u);
  for (const char* wrong : {"", "7", "7.", ".3", "7.0", "7.3.1", "-7.3", "7.x"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(ParseSessionId(wrong).status())) << wrong;
  }
}

TEST(BytesText, Units) {
  EXPECT_EQ(BytesText(1023), "1023 B");
  EXPECT_EQ(BytesText(1536), "1.5 KiB");
  EXPECT_EQ(BytesText(uint64_t{5} << 30), "5.0 GiB");
}

}  // namespace
}  // namespace parkway::cli
