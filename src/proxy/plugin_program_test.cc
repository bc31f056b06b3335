#include "proxy/plugin_program.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "base/limits.h"
#include "proto/ifrt/xla_data.pb.h"

namespace parkway::proxy {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr char kPrefix[] = "__serialized_plugin_program ";

absl::StatusOr<runtime::ReshardRequest> Decode(const std::string& json) { return DecodePluginProgram(kPrefix + json); }

std::string Base64(const xla::OpSharding& proto) { return absl::Base64Escape(proto.SerializeAsString()); }

xla::OpSharding Grid(std::vector<int64_t> dims, bool last_replicated = false) {
  xla::OpSharding proto;
  proto.set_type(xla::OpSharding::OTHER);
  int64_t count = 1;
  for (int64_t dim : dims) {
    proto.add_tile_assignment_dimensions(dim);
    count *= dim;
  }
  proto.add_iota_reshape_dims(count);
  proto.add_iota_transpose_perm(0);
  proto.set_replicate_on_last_tile_dim(last_replicated);
  return proto;
}

std::string Entry(const std::string& ids, const std::string& base64 = "", const std::string& more = "") {
  return absl::StrCat(R"({"devices":{"device_ids":[)", ids, R"(]},"xla_hlo_sharding":")", base64, "\"", more, "}");
}

std::string Reshard(const std::string& in, const std::string& out) {
  return absl::StrCat(R"({"reshardRequest":{"donateInput":true,"inSharding":[)", in, R"(],"outSharding":[)", out,
                      "]}}");
}

TEST(PluginProgram, AReshardIsReadAsItIsSent) {
  auto request = Decode(
      Reshard(Entry("3,1", Base64(Grid({2, 1})), R"(,"memory_kind":"device")") + "," + Entry("0,1"),
              Entry("0,1,2,3", Base64(Grid({1, 2, 2}, true)), R"(,"memory_kind":"pinned_host")") + "," + Entry("7")));
  ASSERT_TRUE(request.ok()) << request.status();
  EXPECT_TRUE(request->donate);
  ASSERT_EQ(request->inputs.size(), 2u);
  ASSERT_EQ(request->outputs.size(), 2u);
  EXPECT_THAT(request->inputs[0]->devices()->ids(), ElementsAre(3, 1));
  EXPECT_EQ(request->inputs[0]->memory_kind(), "device");
  ifrt::Shape shape = *ifrt::Shape::Make({4, 6});
  EXPECT_THAT(request->inputs[0]->ShardShape(shape)->dims(), ElementsAre(2, 6));
  EXPECT_TRUE(request->inputs[1]->IsFullyReplicated());
  EXPECT_EQ(request->inputs[1]->memory_kind(), std::nullopt);
  EXPECT_THAT(request->outputs[0]->ShardShape(shape)->dims(), ElementsAre(4, 3));
  EXPECT_EQ(request->outputs[0]->memory_kind(), "pinned_host");
  EXPECT_EQ(request->outputs[1]->kind(), ifrt::Sharding::Kind::kSingle);
}

TEST(PluginProgram, WhatIsLeftOutIsTheDefault) {
  auto request = Decode(
      R"( {"reshardRequest": {"inSharding": [{"devices": {"device_ids": [0]}}],
                              "outSharding": [{"devices": {"device_ids": [1, 2]}}]}} )");
  ASSERT_TRUE(request.ok()) << request.status();
  EXPECT_FALSE(request->donate);
  EXPECT_TRUE(request->outputs[0]->IsFullyReplicated());
}

TEST(PluginProgram, WhatIsMalformedIsABadPluginProgram) {
  const std::string one = Entry("0");
  xla::OpSharding manual;
  manual.set_type(xla::OpSharding::MANUAL);
  xla::OpSharding maximal;
  maximal.set_type(xla::OpSharding::MAXIMAL);
  maximal.add_tile_assignment_devices(0);
  xla::OpSharding tuple;
  tuple.set_type(xla::OpSharding::TUPLE);
  xla::OpSharding summands = Grid({1, 2});
  summands.add_last_tile_dims(xla::OpSharding::UNREDUCED);
  std::string deep(100, '[');
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"this is not json", "no JSON"},
      {"", "no JSON"},
      {"{", "no JSON"},
      {Reshard(one, one) + "}", "no JSON"},
      {"{\"\xff\xfe\":{}}", "no JSON"},
      {deep, "deep"},
      {Reshard(one, R"({"devices":{"device_ids":[[[[0]]]]}})"), "deep"},
      {R"({"[[[[[[[[[[\"[[[[":{}})", "unknown request"},
      {"[]", "one request"},
      {"{}", "one request"},
      {"null", "one request"},
      {R"({"reshardRequest":{},"profileRequest":{}})", "one request"},
      {R"({"printTextRequest":{"badParamName":"foo"}})", "unknown request \"printTextRequest\""},
      {R"({"reshardRequest":[]})", "expected an object"},
      {R"({"reshardRequest":{}})", "inSharding"},
      {R"({"reshardRequest":{"inSharding":{},"outSharding":[]}})", "inSharding"},
      {Reshard("", ""), "inSharding"},
      {Reshard(one, ""), "outSharding"},
      {Reshard(one, one + "," + one), "1 arrays to 2"},
      {Reshard(one + "," + Entry("0,1"), one + "," + one), "equally many"},
      {absl::StrReplaceAll(Reshard(one, one), {{"donateInput", "donate"}}), "unknown field \"donate\""},
      {absl::StrReplaceAll(Reshard(one, one), {{"true", "1"}}), "donateInput"},
      {Reshard("7", one), "inSharding[0]: expected an object"},
      {Reshard(one, Entry("0", "", R"(,"colour":1)")), "outSharding[0]: unknown field \"colour\""},
      {Reshard(one, Entry("0", "", R"(,"memory_kind":1)")), "memory_kind"},
      {Reshard(one, R"({"devices":{"device_ids":[0]},"xla_hlo_sharding":null})"), "xla_hlo_sharding"},
      {Reshard(R"({"xla_hlo_sharding":""})", one), "names no devices"},
      {Reshard(R"({"devices":[0]})", one), "expected an object"},
      {Reshard(R"({"devices":{}})", one), "list of device ids"},
      {Reshard(R"({"devices":{"device_ids":[0],"more":1}})", one), "unknown field \"more\""},
      {Reshard(Entry(""), one), "list of device ids"},
      {Reshard(Entry("0,0"), one), "inSharding[0]"},
      {Reshard(Entry("-1"), one), "position 0"},
      {Reshard(Entry("0,1.0"), one), "position 1"},
      {Reshard(Entry("\"0\""), one), "position 0"},
      {Reshard(Entry("2147483648"), one), "position 0"},
      {Reshard(Entry("18446744073709551616"), one), "position 0"},
      {Reshard(Entry("0", "!!!"), one), "base64"},
      {Reshard(Entry("0", absl::Base64Escape("\xff\xff\xff")), one), "base64"},
      {Reshard(Entry("0,1,2", Base64(Grid({2}))), one), "inSharding[0]"},
      {Reshard(one, Entry("0,1", Base64(tuple))), "outSharding[0]"},
      {Reshard(one, Entry("0,1", Base64(manual))), "which part of the array"},
      {Reshard(one, Entry("0,1", Base64(maximal))), "which part of the array"},
      {Reshard(Entry("0,1", Base64(summands)), one), "which part of the array"},
  };
  for (const auto& [json, words] : cases) {
    absl::Status status = Decode(json).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << json;
    EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr("Bad PluginProgram"), HasSubstr(words))) << json;
  }
  EXPECT_THAT(std::string(DecodePluginProgram(Reshard(one, one)).status().message()), HasSubstr("Bad PluginProgram"));
}

TEST(PluginProgram, SizeIsLimited) {
  std::string program = kPrefix + Reshard(Entry("0"), Entry("0"));
  program.resize(limits::kMaxPluginProgramBytes, ' ');
  EXPECT_TRUE(DecodePluginProgram(program).ok());
  absl::Status status = DecodePluginProgram(program + " ").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("Bad PluginProgram"));
  std::string many = Entry("0");
  for (int i = 0; i < limits::kMaxArgumentsPerLaunch; ++i) many += "," + Entry("0");
  EXPECT_THAT(std::string(Decode(Reshard(many, many)).status().message()), HasSubstr("at most"));
}

TEST(PluginProgram, WhatParkwayDoesNotHaveIsSaidSo) {
  for (const char* kind : {"profileRequest", "persistenceWriteRequest", "persistenceReadRequest",
                           "bulk_persistence_write_request", "bulk_persistence_read_request"}) {
    EXPECT_EQ(Decode(absl::StrCat("{\"", kind, "\":{}}")).status().code(), absl::StatusCode::kUnimplemented) << kind;
  }
}

}  // namespace
}  // namespace parkway::proxy
