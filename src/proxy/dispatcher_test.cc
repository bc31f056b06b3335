#include "proxy/dispatcher.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ifrt/attributes_wire.h"
#include "proto/ifrt/program.pb.h"
#include "proto/ifrt/sharding.pb.h"
#include "proxy/fake_session.h"

namespace parkway::proxy {
namespace {

namespace wire = xla::ifrt::proxy;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr uint64_t kServerHandles = uint64_t{1} << 48;

class DispatcherTest : public testing::Test, public ReplySink {
 protected:
  DispatcherTest() : topology_({{.platform = "cpu", .hosts = 2, .devices_per_host = 2}, {.platform = "cpu"}}) {
    auto session = std::make_unique<FakeSession>(&executor_);
    session_ = session.get();
    buffers_ = std::make_shared<HostBuffers>();
    dispatcher_ = std::make_unique<Dispatcher>(Dispatcher::Options{.executor = &executor_,
                                                                   .topology = &topology_,
                                                                   .session_id = 77,
                                                                   .buffers = buffers_,
                                                                   .session = std::move(session),
                                                                   .sink = this});
  }

  void Send(std::unique_ptr<wire::IfrtResponse> response, bool awaited) override {
    replies_.push_back(*response);
    awaited_ = awaited;
  }

  // The reply that the request gets at once; one without metadata when there is none yet.
  wire::IfrtResponse Ask(wire::IfrtRequest request) {
    request.mutable_request_metadata()->set_op_id(++op_);
    request.mutable_request_metadata()->set_user_context_id(1000 + op_);
    const size_t before = replies_.size();
    dispatcher_->Handle(request);
    executor_.RunUntilIdle();
    if (replies_.size() == before) return {};
    EXPECT_EQ(replies_.size(), before + 1);
    EXPECT_EQ(replies_.back().response_metadata().op_id(), op_);
    return replies_.back();
  }
  static absl::StatusCode Code(const wire::IfrtResponse& reply) {
    return static_cast<absl::StatusCode>(reply.response_metadata().status().code());
  }
  static std::string Message(const wire::IfrtResponse& reply) { return reply.response_metadata().status().message(); }

  static xla::ifrt::ShardingProto Sharding(std::vector<int> devices, std::vector<int64_t> tiles = {}) {
    xla::ifrt::HloShardingProto hlo;
    for (int id : devices) hlo.mutable_devices()->add_device_ids(id);
    if (!tiles.empty()) {
      hlo.mutable_xla_op_sharding()->set_type(xla::OpSharding::OTHER);
      for (int64_t tile : tiles) hlo.mutable_xla_op_sharding()->add_tile_assignment_dimensions(tile);
      hlo.mutable_xla_op_sharding()->add_iota_reshape_dims(static_cast<int64_t>(devices.size()));
      hlo.mutable_xla_op_sharding()->add_iota_transpose_perm(0);
    }
    xla::ifrt::ShardingProto sharding;
    sharding.mutable_serialized_sharding()->set_type_name("xla::ifrt::HloSharding");
    sharding.mutable_serialized_sharding()->set_data(hlo.SerializeAsString());
    return sharding;
  }
  template <typename Spec>
  static void Fill(Spec* spec, std::vector<int64_t> dims, xla::ifrt::ShardingProto sharding) {
    spec->mutable_dtype()->set_kind(xla::ifrt::DTypeProto::KIND_F32);
    for (int64_t dim : dims) spec->mutable_shape()->add_dims(dim);
    *spec->mutable_sharding() = std::move(sharding);
  }
  wire::IfrtRequest Make(uint64_t handle, std::vector<int64_t> dims = {2, 3}, std::vector<int> devices = {0}) {
    wire::IfrtRequest request;
    auto* make = request.mutable_make_array_from_host_buffer_request();
    Fill(make, dims, Sharding(devices));
    make->set_host_buffer_handle(handle);
    make->set_array_handle(handle);
    return request;
  }
  void Store(uint64_t handle, const std::string& bytes) {
    auto pending = buffers_->Start(handle, static_cast<int64_t>(bytes.size()), executor_.Now());
    ASSERT_TRUE(pending.ok()) << pending.status();
    (*pending)->Set(Bytes::OfString(bytes));
    executor_.RunUntilIdle();
  }
  absl::StatusOr<Bytes> Fetched(uint64_t handle) {
    absl::StatusOr<Bytes> result = absl::UnknownError("pending");
    buffers_->Fetch(handle, [&](const absl::StatusOr<Bytes>& bytes) { result = bytes; });
    return result;
  }
  static wire::IfrtRequest CompileFor(std::vector<int> devices) {
    wire::IfrtRequest request;
    auto* compile = request.mutable_compile_request();
    compile->mutable_program()->set_type_name("xla::ifrt::XlaProgram");
    compile->mutable_program()->set_data("artifact");
    xla::ifrt::XlaCompileOptionsProto options;
    auto* build = options.mutable_compile_options()->mutable_executable_build_options();
    build->set_num_replicas(1);
    build->set_num_partitions(static_cast<int64_t>(devices.size()));
    build->mutable_device_assignment()->set_replica_count(1);
    build->mutable_device_assignment()->set_computation_count(static_cast<int>(devices.size()));
    for (int id : devices) {
      build->mutable_device_assignment()->add_computation_devices()->add_replica_device_ids(id);
    }
    compile->mutable_compile_options()->set_type_name("xla::ifrt::XlaCompileOptions");
    compile->mutable_compile_options()->set_data(options.SerializeAsString());
    return request;
  }
  uint64_t Compiled(std::vector<int> devices) {
    return Ask(CompileFor(std::move(devices))).compile_response().loaded_executable_handle();
  }
  wire::IfrtRequest Execute(uint64_t executable, uint64_t argument, std::vector<uint64_t> results = {}) {
    wire::IfrtRequest request;
    auto* execute = request.mutable_loaded_executable_execute_request();
    execute->set_loaded_executable_handle(executable);
    execute->add_args_handles(argument);
    for (uint64_t result : results) execute->add_result_array_handle(result);
    return request;
  }

  SimExecutor executor_;
  runtime::Topology topology_;
  FakeSession* session_;
  HostBuffersRef buffers_;
  std::vector<wire::IfrtResponse> replies_;
  bool awaited_ = false;
  uint64_t op_ = 0;
  std::unique_ptr<Dispatcher> dispatcher_;
};

TEST_F(DispatcherTest, InitTellsDevicesAsJaxNamesThem) {
  wire::IfrtRequest request;
  request.mutable_init_request();
  const wire::IfrtResponse reply = Ask(request);
  const wire::InitResponse& init = reply.init_response();
  EXPECT_EQ(init.session_id(), 77);
  EXPECT_EQ(init.platform_name(), "cpu");
  EXPECT_EQ(init.runtime_type(), "pathways");
  ASSERT_EQ(init.all_devices_size(), 5);
  EXPECT_EQ(init.all_devices(3).to_string(), "CpuDevice(id=3)");
  EXPECT_EQ(init.all_devices(3).debug_string(), "cpu:3");
  auto attributes = ifrt::DecodeAttributes(init.all_devices(3).attributes());
  ASSERT_TRUE(attributes.ok());
  EXPECT_EQ((*attributes)["slice_index"], ifrt::Attribute(int64_t{0}));
  EXPECT_EQ((*attributes)["task_id"], ifrt::Attribute(int64_t{1}));
  EXPECT_EQ((*attributes)["coords"], ifrt::Attribute(std::vector<int64_t>{3, 0, 0}));
  EXPECT_EQ((*ifrt::DecodeAttributes(init.all_devices(4).attributes()))["slice_index"], ifrt::Attribute(int64_t{1}));
  std::set<int> memories;
  for (const auto& memory : init.memories()) memories.insert(memory.id());
  EXPECT_EQ(memories.size(), 15);
  for (const auto& device : init.all_devices()) EXPECT_TRUE(memories.contains(device.default_memory_id()));
  auto client = ifrt::DecodeAttributes(init.client_attributes());
  EXPECT_EQ((*client)["serialize_with_sdy"], ifrt::Attribute(true));
  EXPECT_EQ((*client)["supports_executable_serialization"], ifrt::Attribute(false));
}

TEST_F(DispatcherTest, BytesMayComeBeforeOrAfterTheirRequest) {
  Store(5, std::string(24, 'a'));
  EXPECT_EQ(Ask(Make(5)).make_array_from_host_buffer_response().array_handle(), 5);
  EXPECT_FALSE(awaited_);
  EXPECT_EQ(Ask(Make(6)).make_array_from_host_buffer_response().array_handle(), 6);
  wire::IfrtRequest ready;
  ready.mutable_check_value_ready_request()->add_value_handles(5);
  ready.mutable_check_value_ready_request()->add_value_handles(6);
  EXPECT_FALSE(Ask(ready).has_response_metadata()) << "answered before the bytes were there";
  Store(6, std::string(24, 'b'));
  ASSERT_TRUE(replies_.back().has_check_value_ready_response());
  EXPECT_TRUE(awaited_);
  EXPECT_EQ(session_->arrays[6].bytes->view(), std::string(24, 'b'));
}

TEST_F(DispatcherTest, BadArraysAreErrorsUnderTheirHandles) {
  struct Case {
    const char* what;
    std::function<void(wire::MakeArrayFromHostBufferRequest*)> spoil;
  };
  const Case cases[] = {
      {"dtype", [](auto* make) { make->mutable_dtype()->set_kind(static_cast<xla::ifrt::DTypeProto::Kind>(200)); }},
      {"dims", [](auto* make) { make->mutable_shape()->set_dims(0, -1); }},
      {"size", [](auto* make) { make->mutable_shape()->set_dims(0, int64_t{1} << 62); }},
      {"device", [](auto* make) { *make->mutable_sharding() = Sharding({99}); }},
      {"no sharding", [](auto* make) { make->clear_sharding(); }},
      {"garbage", [](auto* make) { make->mutable_sharding()->mutable_serialized_sharding()->set_data("\xff\xff"); }},
  };
  uint64_t handle = 100;
  for (const Case& c : cases) {
    SCOPED_TRACE(c.what);
    wire::IfrtRequest request = Make(++handle);
    c.spoil(request.mutable_make_array_from_host_buffer_request());
    EXPECT_EQ(Code(Ask(request)), absl::StatusCode::kInvalidArgument);
    ASSERT_TRUE(session_->arrays.contains(handle));
    EXPECT_EQ(session_->arrays[handle].bytes.status().code(), absl::StatusCode::kInvalidArgument);
  }
  EXPECT_EQ(Code(Ask(Make(kServerHandles))), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Code(Ask(Make(0))), absl::StatusCode::kInvalidArgument);
}

TEST_F(DispatcherTest, ShardsAreEachMadeOnce) {
  auto request = [&](std::vector<std::vector<int>> shards) {
    wire::IfrtRequest request;
    auto* make = request.mutable_make_arrays_from_host_buffer_shards_request();
    make->add_array_handles(10 + op_);
    auto* spec = make->add_specs();
    Fill(spec->mutable_array_spec(), {8}, Sharding({0, 1}, {2}));
    for (const auto& indices : shards) {
      auto* list = spec->add_addressable_shard_indices();
      for (int index : indices) list->add_indices(index);
      auto* buffer = spec->add_host_buffers();
      buffer->mutable_dtype()->set_kind(xla::ifrt::DTypeProto::KIND_F32);
      buffer->mutable_shape()->add_dims(4);
      buffer->set_host_buffer_handle(500 + 10 * op_ + spec->host_buffers_size());
    }
    return request;
  };
  EXPECT_TRUE(Ask(request({{0}, {1}})).has_make_arrays_from_host_buffer_shards_response());
  EXPECT_TRUE(Ask(request({{0, 1}})).has_make_arrays_from_host_buffer_shards_response());
  EXPECT_THAT(Message(Ask(request({{0}, {0}}))), HasSubstr("shard 0"));
  EXPECT_THAT(Message(Ask(request({{0}}))), HasSubstr("no buffer for shard 1"));
  EXPECT_THAT(Message(Ask(request({{0}, {2}}))), HasSubstr("shard 2"));
  EXPECT_THAT(Message(Ask(request({{0}, {-1}}))), HasSubstr("shard -1"));
  wire::IfrtRequest uneven = request({{0}, {1}});
  uneven.mutable_make_arrays_from_host_buffer_shards_request()->add_array_handles(4000);
  EXPECT_EQ(Code(Ask(uneven)), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(session_->arrays[4000].bytes.status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(DispatcherTest, ReadsGoToAHostBuffer) {
  const std::string bytes("\0\0\0\1\0\0\0\2\0\0\0\3\0\0\0\4\0\0\0\5\0\0\0\6", 24);
  Store(5, bytes);
  Ask(Make(5));
  wire::IfrtRequest read;
  read.mutable_copy_to_host_buffer_request()->set_array_handle(5);
  read.mutable_copy_to_host_buffer_request()->set_host_buffer_handle(9);
  EXPECT_TRUE(Ask(read).has_copy_to_host_buffer_response());
  EXPECT_TRUE(awaited_);
  EXPECT_EQ(Fetched(9)->view(), bytes);
  EXPECT_THAT(Message(Ask(read)), HasSubstr("in use"));
  buffers_->Delete(9);
  EXPECT_EQ(Fetched(9).status().code(), absl::StatusCode::kFailedPrecondition);
  // Column-major.
  auto* strides = read.mutable_copy_to_host_buffer_request()->mutable_byte_strides();
  strides->add_strides(4);
  strides->add_strides(8);
  EXPECT_TRUE(Ask(read).has_copy_to_host_buffer_response());
  EXPECT_EQ(Fetched(9)->view(), std::string("\0\0\0\1\0\0\0\4\0\0\0\2\0\0\0\5\0\0\0\3\0\0\0\6", 24));
  read.mutable_copy_to_host_buffer_request()->set_array_handle(12345);
  EXPECT_THAT(Message(Ask(read)), HasSubstr("12345"));
}

TEST_F(DispatcherTest, AReadIsAnsweredBeforeItsBytesAreThere) {
  Ask(Make(5));  // its bytes are yet to come
  wire::IfrtRequest read;
  read.mutable_copy_to_host_buffer_request()->set_array_handle(5);
  read.mutable_copy_to_host_buffer_request()->set_host_buffer_handle(9);
  EXPECT_TRUE(Ask(read).has_copy_to_host_buffer_response());
  std::string fetched;
  buffers_->Fetch(
      9, [&](const absl::StatusOr<Bytes>& bytes) { fetched = bytes.ok() ? std::string(bytes->view()) : "failed"; });
  EXPECT_EQ(fetched, "");
  const std::string bytes(24, 'x');
  Store(5, bytes);
  EXPECT_EQ(fetched, bytes);
}

TEST_F(DispatcherTest, MovesReachTheSession) {
  Store(5, std::string(24, 'a'));
  Ask(Make(5));
  session_->calls.clear();
  wire::IfrtRequest split;
  auto* disassemble = split.mutable_disassemble_into_single_device_arrays_request();
  disassemble->set_array_handle(5);
  disassemble->set_copy_semantics(xla::ifrt::proto::ARRAY_COPY_SEMANTICS_ALWAYS_COPY);
  disassemble->add_result_handles(6);
  EXPECT_THAT(Ask(split).disassemble_into_single_device_arrays_response().array_handles(), ElementsAre(6));
  wire::IfrtRequest copy;
  copy.mutable_copy_arrays_request()->add_array_handles(5);
  copy.mutable_copy_arrays_request()->add_result_handles(7);
  copy.mutable_copy_arrays_request()->add_device_ids(3);
  copy.mutable_copy_arrays_request()->set_memory_kind("pinned_host");
  copy.mutable_copy_arrays_request()->set_copy_semantics(xla::ifrt::proto::ARRAY_COPY_SEMANTICS_REUSE_INPUT);
  EXPECT_THAT(Ask(copy).copy_arrays_response().array_handles(), ElementsAre(7));
  wire::IfrtRequest assemble;
  auto* whole = assemble.mutable_assemble_array_from_single_device_arrays_request();
  Fill(whole, {2, 3}, Sharding({0}));
  whole->add_single_device_array_handles(6);
  whole->set_result_handle(8);
  whole->set_copy_semantics(xla::ifrt::proto::ARRAY_COPY_SEMANTICS_REUSE_INPUT);
  EXPECT_EQ(Ask(assemble).assemble_array_from_single_device_arrays_response().array_handle(), 8);
  whole->clear_dtype();
  whole->set_result_handle(9);
  EXPECT_EQ(Ask(assemble).assemble_array_from_single_device_arrays_response().array_handle(), 9);
  wire::IfrtRequest shard;
  shard.mutable_fully_replicated_shard_request()->set_array_handle(5);
  shard.mutable_fully_replicated_shard_request()->set_result_handle(10);
  shard.mutable_fully_replicated_shard_request()->set_copy_semantics(
      xla::ifrt::proto::ARRAY_COPY_SEMANTICS_DONATE_INPUT);
  EXPECT_EQ(Ask(shard).fully_replicated_shard_response().array_handle(), 10);
  wire::IfrtRequest reshard;
  reshard.mutable_reshard_arrays_request()->add_array_handles(5);
  Fill(reshard.mutable_reshard_arrays_request()->add_array_specs(), {2, 3}, Sharding({1}));
  reshard.mutable_reshard_arrays_request()->add_result_handles(11);
  reshard.mutable_reshard_arrays_request()->set_copy_semantics(xla::ifrt::proto::ARRAY_COPY_SEMANTICS_ALWAYS_COPY);
  EXPECT_THAT(Ask(reshard).reshard_arrays_response().array_handles(), ElementsAre(11));
  EXPECT_THAT(session_->calls, ElementsAre("disassemble 5 to 1", "copy to [3] pinned_host", "assemble 8 of 1",
                                           "assemble 9 of 1", "shard 5 to 1", "reshard to 1"));
}

TEST_F(DispatcherTest, BadMovesLeaveErrors) {
  wire::IfrtRequest copy;
  copy.mutable_copy_arrays_request()->add_array_handles(5);
  copy.mutable_copy_arrays_request()->add_result_handles(7);
  EXPECT_THAT(Message(Ask(copy)), HasSubstr("copy semantics"));
  copy.mutable_copy_arrays_request()->set_copy_semantics(xla::ifrt::proto::ARRAY_COPY_SEMANTICS_REUSE_INPUT);
  copy.mutable_copy_arrays_request()->set_memory_kind("hbm3");
  EXPECT_THAT(Message(Ask(copy)), HasSubstr("hbm3"));
  copy.mutable_copy_arrays_request()->clear_memory_kind();
  copy.mutable_copy_arrays_request()->add_device_ids(42);
  EXPECT_THAT(Message(Ask(copy)), HasSubstr("42"));
  copy.mutable_copy_arrays_request()->clear_device_ids();
  copy.mutable_copy_arrays_request()->add_array_handles(6);
  EXPECT_THAT(Message(Ask(copy)), HasSubstr("2 arrays to 1"));
  EXPECT_FALSE(session_->arrays[7].bytes.ok());
  wire::IfrtRequest remap;
  remap.mutable_remap_arrays_request()->add_array_handles(5);
  remap.mutable_remap_arrays_request()->add_result_handles(8);
  remap.mutable_remap_arrays_request()->set_copy_semantics(xla::ifrt::proto::ARRAY_COPY_SEMANTICS_REUSE_INPUT);
  Fill(remap.mutable_remap_arrays_request()->mutable_plan()->add_output_specs(), {4}, Sharding({0}));
  EXPECT_EQ(Code(Ask(remap)), absl::StatusCode::kInvalidArgument);
  EXPECT_FALSE(session_->arrays[8].bytes.ok());
}

TEST_F(DispatcherTest, CompileAndExecute) {
  session_->program.set_name("jit_f");
  session_->program.set_fingerprint("abc");
  const wire::IfrtResponse reply = Ask(CompileFor({2, 0}));
  const wire::CompileResponse& compiled = reply.compile_response();
  EXPECT_EQ(compiled.name(), "jit_f");
  EXPECT_THAT(compiled.device_ids(), ElementsAre(2, 0));
  EXPECT_EQ(compiled.num_devices(), 2);
  EXPECT_THAT(compiled.loaded_host_callback_handles(), IsEmpty());
  EXPECT_EQ(session_->compiled.program, "artifact");
  Store(5, std::string(24, 'a'));
  Ask(Make(5));
  const wire::IfrtResponse first = Ask(Execute(compiled.loaded_executable_handle(), 5));
  EXPECT_TRUE(awaited_);
  ASSERT_EQ(first.loaded_executable_execute_response().outputs_size(), 1);
  EXPECT_GE(first.loaded_executable_execute_response().outputs(0).array_handle(), kServerHandles);
  EXPECT_THAT(first.loaded_executable_execute_response().outputs(0).shape().dims(), ElementsAre(2, 3));
  const wire::IfrtResponse second = Ask(Execute(compiled.loaded_executable_handle(), 5, {20}));
  EXPECT_FALSE(awaited_);
  EXPECT_TRUE(second.has_loaded_executable_execute_response());
  EXPECT_TRUE(session_->arrays.contains(20));
  EXPECT_EQ(Code(Ask(Execute(99, 5))), absl::StatusCode::kInvalidArgument);
  wire::IfrtRequest destruct;
  destruct.mutable_loaded_executable_destruct_request()->set_loaded_executable_handle(
      compiled.loaded_executable_handle());
  EXPECT_TRUE(Ask(destruct).has_loaded_executable_destruct_response());
}

TEST_F(DispatcherTest, WhatIsNoXlaProgramIsRefusedInWords) {
  auto with_type = [&](const std::string& type) {
    wire::IfrtRequest request = CompileFor({0});
    request.mutable_compile_request()->mutable_program()->set_type_name(type);
    return Ask(request);
  };
  EXPECT_THAT(Message(with_type("xla::ifrt::CustomCallProgram")), HasSubstr("colocated Python"));
  EXPECT_EQ(Code(with_type("xla::ifrt::IfrtIRProgram")), absl::StatusCode::kUnimplemented);
  EXPECT_EQ(Code(with_type("nonsense")), absl::StatusCode::kInvalidArgument);
  wire::IfrtRequest callbacks = CompileFor({0});
  callbacks.mutable_compile_request()->add_host_callbacks("callback");
  const wire::IfrtResponse refused = Ask(callbacks);
  EXPECT_EQ(Code(refused), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(Message(refused), HasSubstr("jax.debug.print"));
}

TEST_F(DispatcherTest, AReshardOfPathwaysutilsIsAnExecutable) {
  auto compile = [&](const std::string& in, const std::string& out) {
    wire::IfrtRequest request;
    request.mutable_compile_request()->mutable_program()->set_type_name("xla::ifrt::PluginProgram");
    request.mutable_compile_request()->mutable_program()->set_data(
        R"(__serialized_plugin_program {"reshardRequest":{"inSharding":[{"devices":{"device_ids":[)" + in +
        R"(]}}],"outSharding":[{"devices":{"device_ids":[)" + out + R"(]},"memory_kind":"pinned_host"}]}})");
    return Ask(request);
  };
  const wire::IfrtResponse reply = compile("2,0", "1");
  EXPECT_TRUE(awaited_);
  ASSERT_TRUE(reply.has_compile_response()) << Message(reply);
  EXPECT_THAT(reply.compile_response().device_ids(), ElementsAre(2, 0));
  EXPECT_EQ(reply.compile_response().num_devices(), 2);
  EXPECT_FALSE(reply.compile_response().has_fingerprint_value());
  ASSERT_EQ(session_->resharded.outputs.size(), 1u);
  EXPECT_EQ(session_->resharded.outputs[0]->memory_kind(), "pinned_host");
  EXPECT_EQ(Code(compile("99", "1")), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(Message(compile("0", "99")), HasSubstr("Bad PluginProgram"));
  EXPECT_THAT(Message(compile("x", "1")), HasSubstr("Bad PluginProgram"));
}

TEST_F(DispatcherTest, DeviceAssignmentsAreChecked) {
  EXPECT_EQ(Code(Ask(CompileFor({0, 5}))), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Code(Ask(CompileFor({1, 1}))), absl::StatusCode::kInvalidArgument);
  auto with = [&](std::function<void(xla::ExecutableBuildOptionsProto*)> change) {
    wire::IfrtRequest request = CompileFor({0, 1});
    auto* serialized = request.mutable_compile_request()->mutable_compile_options();
    xla::ifrt::XlaCompileOptionsProto options;
    EXPECT_TRUE(options.ParseFromString(serialized->data()));
    change(options.mutable_compile_options()->mutable_executable_build_options());
    serialized->set_data(options.SerializeAsString());
    return Code(Ask(request));
  };
  EXPECT_EQ(with([](auto* build) { build->set_num_replicas(int64_t{1} << 40); }), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(with([](auto* build) { build->set_num_partitions(3); }), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(with([](auto* build) {
              build->mutable_device_assignment()->mutable_computation_devices(1)->clear_replica_device_ids();
            }),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(with([](auto* build) { build->clear_device_assignment(); }), absl::StatusCode::kOk);
  wire::IfrtRequest garbage = CompileFor({0});
  garbage.mutable_compile_request()->mutable_compile_options()->set_data("\xff\xff\xff");
  EXPECT_EQ(Code(Ask(garbage)), absl::StatusCode::kInvalidArgument);
}

TEST_F(DispatcherTest, MetadataOfASingleDeviceProgramHasNoShardings) {
  session_->program.add_outputs();
  session_->program.add_output_layouts("{1,0}");
  session_->program.add_parameter_layouts("{1,0:T(8,128)}");
  session_->program.add_donated(1);
  session_->program.add_output_shardings(xla::OpSharding().SerializeAsString());
  session_->program.mutable_memory()->set_temp_bytes(12);
  session_->program.set_text("HloModule f");
  (*session_->program.mutable_costs())["flops"] = 8;
  const uint64_t executable = Compiled({0});
  wire::IfrtRequest request;
  request.mutable_loaded_executable_metadata_request()->set_loaded_executable_handle(executable);
  const wire::IfrtResponse reply = Ask(request);
  const auto& metadata = reply.loaded_executable_metadata_response();
  EXPECT_FALSE(metadata.has_output_shardings());
  EXPECT_FALSE(metadata.has_parameter_shardings());
  EXPECT_THAT(metadata.output_layouts_list().layouts(0).minor_to_major(), ElementsAre(1, 0));
  EXPECT_TRUE(metadata.has_parameter_layouts_error());
  EXPECT_THAT(metadata.output_memory_kinds().memory_kind_lists(0).memory_kinds(), ElementsAre("device"));
  EXPECT_THAT(metadata.donated_input_indices().donated_input_indices(), ElementsAre(1));
  EXPECT_EQ(metadata.compiled_memory_stats().temp_size_in_bytes(), 12);
  wire::IfrtRequest text;
  text.mutable_loaded_executable_human_readable_program_text_request()->set_loaded_executable_handle(executable);
  EXPECT_EQ(Ask(text).loaded_executable_human_readable_program_text_response().human_readable_program_text(),
            "HloModule f");
  wire::IfrtRequest cost;
  cost.mutable_loaded_executable_cost_analysis_request()->set_loaded_executable_handle(executable);
  EXPECT_EQ((*ifrt::DecodeAttributes(Ask(cost).loaded_executable_cost_analysis_response().attributes()))["flops"],
            ifrt::Attribute(8.0f));
}

TEST_F(DispatcherTest, QueriesOfThePlatform) {
  wire::IfrtRequest layout;
  layout.mutable_get_default_layout_request()->mutable_dtype()->set_kind(xla::ifrt::DTypeProto::KIND_F32);
  layout.mutable_get_default_layout_request()->add_dims(4);
  layout.mutable_get_default_layout_request()->add_dims(8);
  EXPECT_EQ(Ask(layout).get_default_layout_response().serialized_pjrt_layout(), "{1,0}");
  layout.mutable_get_default_layout_request()->set_device_id(7);
  EXPECT_EQ(Code(Ask(layout)), absl::StatusCode::kInvalidArgument);
  wire::IfrtRequest assignment;
  assignment.mutable_get_default_device_assignment_request()->set_num_replicas(2);
  assignment.mutable_get_default_device_assignment_request()->set_num_partitions(2);
  const wire::IfrtResponse reply = Ask(assignment);
  EXPECT_THAT(
      reply.get_default_device_assignment_response().device_assignment().computation_devices(1).replica_device_ids(),
      ElementsAre(1, 3));
  assignment.mutable_get_default_device_assignment_request()->set_num_replicas(uint64_t{1} << 63);
  EXPECT_EQ(Code(Ask(assignment)), absl::StatusCode::kInvalidArgument);
}

TEST_F(DispatcherTest, EveryOtherRequestIsUnimplementedInWords) {
  std::vector<wire::IfrtRequest> requests(5);
  requests[0].mutable_loaded_executable_mpmd_metadata_request();
  requests[1].mutable_loaded_executable_mpmd_cost_analysis_request();
  requests[2].mutable_loaded_host_callback_poll_request();
  requests[3].mutable_loaded_host_callback_return_request();
  requests[4].ParseFromString(std::string("\x82\x01\x00", 3));  // LoadedExecutableDeleteRequest, field 16
  for (const wire::IfrtRequest& request : requests) {
    SCOPED_TRACE(request.request_case());
    const wire::IfrtResponse reply = Ask(request);
    EXPECT_EQ(Code(reply), absl::StatusCode::kUnimplemented);
    EXPECT_FALSE(Message(reply).empty());
    EXPECT_EQ(reply.response_case(), wire::IfrtResponse::RESPONSE_NOT_SET);
  }
  EXPECT_EQ(Code(Ask({})), absl::StatusCode::kInvalidArgument);
  wire::IfrtRequest future;
  future.ParseFromString(std::string("\xba\x3e\x00", 3));  // field 999
  EXPECT_EQ(Code(Ask(future)), absl::StatusCode::kInvalidArgument);
}

// ---- What kills the client: one test for each.

TEST_F(DispatcherTest, AUserContextIsListedOnceAndOnlyInItsOwnOkReply) {
  Store(5, std::string(24, 'a'));
  Ask(Make(5));               // counted: 0
  Ask(Make(kServerHandles));  // an error: neither counted nor listed
  wire::IfrtRequest destruct;
  destruct.mutable_destruct_array_request()->add_array_handle(6);
  Ask(destruct);  // not counted
  wire::IfrtRequest del;
  del.mutable_delete_array_request()->add_array_handle(5);
  const uint64_t future = Ask(del).delete_array_response().deletion_future_handle();
  wire::IfrtRequest check;
  check.mutable_check_future_request()->set_future_handle(future);
  Ask(check);    // of a deletion: not counted
  Ask(Make(7));  // counted: 1
  std::vector<uint64_t> listed;
  std::vector<int64_t> numbers;
  for (const wire::IfrtResponse& reply : replies_) {
    const auto& metadata = reply.response_metadata();
    for (uint64_t id : metadata.destroyed_user_context_ids()) {
      EXPECT_EQ(id, 1000 + metadata.op_id());
      listed.push_back(id);
      numbers.push_back(metadata.seq_num());
    }
    if (metadata.has_status()) {
      EXPECT_THAT(metadata.destroyed_user_context_ids(), IsEmpty());
    }
  }
  EXPECT_THAT(listed, ElementsAre(1001, 1006));
  EXPECT_THAT(numbers, ElementsAre(0, 1));
  EXPECT_TRUE(replies_[4].has_check_future_response());
}

TEST_F(DispatcherTest, NoReplyHasANamedSharding) {
  xla::OpSharding named;
  auto* axis = named.mutable_named_sharding()->mutable_mesh()->add_axes();
  axis->set_name("x");
  axis->set_size(2);
  named.mutable_named_sharding()->add_dim_shardings()->add_axes()->set_mesh_axis_index(0);
  session_->program.add_outputs();
  session_->program.add_parameter_shardings(named.SerializeAsString());
  session_->program.add_output_shardings(named.SerializeAsString());
  wire::IfrtRequest request;
  request.mutable_loaded_executable_metadata_request()->set_loaded_executable_handle(Compiled({0, 1}));
  const wire::IfrtResponse reply = Ask(request);
  const auto& metadata = reply.loaded_executable_metadata_response();
  ASSERT_EQ(metadata.output_shardings().shardings_size(), 1);
  EXPECT_FALSE(metadata.output_shardings().shardings(0).has_named_sharding());
  EXPECT_FALSE(metadata.parameter_shardings().shardings(0).has_named_sharding());
  EXPECT_THAT(metadata.output_shardings().shardings(0).tile_assignment_dimensions(), ElementsAre(2));
  // One that can't be converted is an error, not a named sharding.
  session_->program.clear_output_shardings();
  named.mutable_named_sharding()->mutable_dim_shardings(0)->mutable_axes(0)->set_mesh_axis_index(9);
  session_->program.add_output_shardings(named.SerializeAsString());
  request.mutable_loaded_executable_metadata_request()->set_loaded_executable_handle(Compiled({0, 1}));
  const wire::IfrtResponse failed = Ask(request);
  EXPECT_NE(Code(failed), absl::StatusCode::kOk);
  EXPECT_EQ(failed.response_case(), wire::IfrtResponse::RESPONSE_NOT_SET);
}

TEST_F(DispatcherTest, OutputsOfALaunchHaveTileShardings) {
  auto devices = *ifrt::DeviceList::Make(std::vector<int32_t>{0, 1});
  session_->output_spec = runtime::ArraySpec{
      .dtype = ifrt::DType::kF32,
      .shape = *ifrt::Shape::Make(std::vector<int64_t>{8}),
      .sharding = *ifrt::Sharding::Tiled(devices, *ifrt::TileAssignment::Iota(std::vector<int64_t>{2}), {}),
      .layout = {}};
  Store(5, std::string(24, 'a'));
  Ask(Make(5));
  const wire::IfrtResponse reply = Ask(Execute(Compiled({0, 1}), 5));
  const auto& serialized = reply.loaded_executable_execute_response().outputs(0).sharding().serialized_sharding();
  EXPECT_EQ(serialized.type_name(), "xla::ifrt::HloSharding");
  xla::ifrt::HloShardingProto sharding;
  ASSERT_TRUE(sharding.ParseFromString(serialized.data()));
  EXPECT_FALSE(sharding.xla_op_sharding().has_named_sharding());
  EXPECT_THAT(sharding.xla_op_sharding().tile_assignment_dimensions(), ElementsAre(2));
}

TEST_F(DispatcherTest, AStatusHandleIsGivenOnlyWhenAskedFor) {
  Store(5, std::string(24, 'a'));
  Ask(Make(5));
  const uint64_t executable = Compiled({0});
  EXPECT_EQ(Ask(Execute(executable, 5)).loaded_executable_execute_response().status_handle(), 0);
  wire::IfrtRequest request = Execute(executable, 5, {21});
  request.mutable_loaded_executable_execute_request()->mutable_execute_options()->set_fill_status(true);
  request.mutable_loaded_executable_execute_request()->set_result_status_handle(22);
  EXPECT_EQ(Ask(request).loaded_executable_execute_response().status_handle(), 22);
  wire::IfrtRequest fetch;
  fetch.mutable_loaded_executable_fetch_execute_result_request()->set_result_status_handle(22);
  EXPECT_TRUE(Ask(fetch).has_loaded_executable_fetch_execute_result_response());
}

TEST_F(DispatcherTest, ARequestThatTheSessionForgetsIsStillAnswered) {
  Ask(Make(6));  // its bytes never come
  wire::IfrtRequest ready;
  ready.mutable_check_value_ready_request()->add_value_handles(6);
  Ask(ready);
  session_->arrays.clear();  // with what waits
  EXPECT_EQ(Code(replies_.back()), absl::StatusCode::kAborted);
}

TEST_F(DispatcherTest, NothingIsSentAfterTheEnd) {
  Ask(Make(6));
  wire::IfrtRequest ready;
  ready.mutable_check_value_ready_request()->add_value_handles(6);
  Ask(ready);
  const size_t before = replies_.size();
  dispatcher_.reset();
  executor_.RunUntilIdle();
  EXPECT_EQ(replies_.size(), before);
}

}  // namespace
}  // namespace parkway::proxy
