// The compiler role as its own process, given what JAX sends (make_test_programs.py).
#include "engine/compiler/role.h"

#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <future>
#include <memory>
#include <sstream>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status_wire.h"
#include "base/subprocess.h"
#include "engine/compiler/frame.h"
#include "engine/compiler/pool.h"
#include "gmock/gmock.h"
#include "proto/ifrt/compile_options.pb.h"
#include "proto/ifrt/ifrt.pb.h"
#include "proto/parkway/compiler.pb.h"

namespace parkway::compiler {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::UnorderedElementsAre;
using Kind = xla::ifrt::DTypeProto;

std::string ReadFile(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  EXPECT_TRUE(in.good()) << path;
  std::stringstream out;
  out << in.rdbuf();
  return out.str();
}

std::string ProgramPath(const std::string& name) { return absl::StrCat(getenv("PARKWAY_TEST_PROGRAMS"), "/", name); }

CompileJob Job(const std::string& name, int devices) {
  CompileJob job;
  job.set_job(7);
  job.set_platform("cpu");
  job.set_program(ReadFile(ProgramPath(name + ".program")));
  job.set_compile_options(ReadFile(ProgramPath(name + ".options")));
  job.set_num_devices(devices);
  return job;
}

// One compiler process for all tests: what one program leaves behind must not hurt the next.
class RoleTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    std::array<int, 2> ends;
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()), 0);
    auto started = Subprocess::Start({.argv = {COMPILER_ROLE_MAIN, "--fd=5"}, .fds = {{ends[1], 5}}});
    ASSERT_TRUE(started.ok()) << started.status();
    role_ = *std::move(started);
    close(ends[1]);
    fd_ = ends[0];
  }

  // Ends the role the way a proxy does.
  static void TearDownTestSuite() {
    close(fd_);
    auto exit = role_->Wait(absl::Seconds(30));
    ASSERT_TRUE(exit.has_value());
    EXPECT_TRUE(exit->ok()) << exit->words();
    role_.reset();
  }

  static absl::StatusOr<CompiledProgram> Compile(const CompileJob& job) {
    absl::Status sent = WriteFrame(fd_, job);
    EXPECT_TRUE(sent.ok()) << sent;
    CompileResult result;
    started_.clear();
    do {
      absl::StatusOr<std::string> frame = ReadFrame(fd_);
      if (!frame.ok()) return frame.status();
      EXPECT_TRUE(result.ParseFromString(*frame));
      EXPECT_EQ(result.job(), job.job());
      if (!result.started().empty()) started_ = result.started();
    } while (!result.started().empty());
    absl::Status status = FromProto(result.status());
    if (!status.ok()) return status;
    return result.program();
  }

  // Runs a compiled program in another process on arange, every parameter float32 of `shard_dims` on each device.
  static std::string Run(const CompiledProgram& program, int devices, const std::string& shard_dims) {
    const std::string base = absl::StrCat(::testing::TempDir(), "/", program.fingerprint());
    std::ofstream(base + ".exe", std::ios::binary) << program.executable();
    std::ofstream(base + ".opts", std::ios::binary) << program.compile_options();
    const std::string command = absl::StrCat(PARKWAY_PYTHON_EXECUTABLE, " ", RUN_TEST_PROGRAM, " ", base, ".exe ", base,
                                             ".opts ", devices, " ", shard_dims, " > ", base, ".out");
    EXPECT_EQ(system(command.c_str()), 0);
    std::string out = ReadFile(base + ".out");
    for (const char* suffix : {".exe", ".opts", ".out"}) std::remove((base + suffix).c_str());
    return out;
  }

 private:
  static inline std::unique_ptr<Subprocess> role_;
  static inline int fd_ = -1;

 protected:
  static inline std::string started_;  // the name that came before the last result
};

std::string Text(const TypeProto& type) {
  std::string text = Kind::Kind_Name(static_cast<Kind::Kind>(type.dtype()));
  for (int64_t dim : type.dims()) absl::StrAppend(&text, " ", dim);
  return text;
}

std::vector<std::string> Texts(const google::protobuf::RepeatedPtrField<TypeProto>& types) {
  std::vector<std::string> out;
  for (const TypeProto& type : types) out.push_back(Text(type));
  return out;
}

xla::OpSharding Sharding(const std::string& serialized) {
  xla::OpSharding sharding;
  EXPECT_TRUE(sharding.ParseFromString(serialized));
  return sharding;
}

TEST_F(RoleTest, PsumOverFourDevices) {
  auto program = Compile(Job("psum", 4));
  ASSERT_TRUE(program.ok()) << program.status();
  EXPECT_THAT(program->name(), HasSubstr("jit"));
  EXPECT_EQ(started_, program->name());
  EXPECT_THAT(Texts(program->parameters()), ElementsAre("KIND_F32 8 8"));
  EXPECT_THAT(Texts(program->parameter_shards()), ElementsAre("KIND_F32 2 8"));
  EXPECT_THAT(Texts(program->outputs()), ElementsAre("KIND_F32 2 8"));
  EXPECT_THAT(Texts(program->output_shards()), ElementsAre("KIND_F32 2 8"));
  EXPECT_THAT(Sharding(program->parameter_shardings(0)).tile_assignment_dimensions(), ElementsAre(4, 1));
  EXPECT_EQ(Sharding(program->output_shardings(0)).type(), xla::OpSharding::REPLICATED);
  EXPECT_THAT(program->parameter_layouts(), ElementsAre("{1,0}"));
  EXPECT_THAT(program->output_memory_kinds(), ElementsAre("device"));
  EXPECT_THAT(program->donated(), IsEmpty());
  EXPECT_TRUE(program->spans_collectives());
  EXPECT_THAT(program->text(), HasSubstr("all-reduce"));
  EXPECT_EQ(program->memory().argument_bytes(), 2 * 8 * 4);
  EXPECT_GT(program->costs().at("flops"), 0);

  // Column c of the sum over the 4 shards of arange(64) as 8x8: rows r, r+2, r+4, r+6.
  std::string row0, row1;
  for (int column = 0; column < 8; ++column) {
    absl::StrAppend(&row0, column == 0 ? "" : " ", 96 + 4 * column, ".0000");
    absl::StrAppend(&row1, " ", 128 + 4 * column, ".0000");
  }
  std::string shard = absl::StrCat(row0, row1, "\n");
  EXPECT_EQ(Run(*program, 4, "2,8"), absl::StrCat(shard, shard, shard, shard));
}

TEST_F(RoleTest, DevicesOfTheClientDoNotMatter) {
  auto program = Compile(Job("psum_reversed", 4));
  auto plain = Compile(Job("psum", 4));
  ASSERT_TRUE(program.ok()) << program.status();
  EXPECT_EQ(program->fingerprint(), plain->fingerprint());
  xla::CompileOptionsProto options;
  ASSERT_TRUE(options.ParseFromString(program->compile_options()));
  const xla::ExecutableBuildOptionsProto& build = options.executable_build_options();
  ASSERT_EQ(build.device_assignment().computation_devices_size(), 4);
  for (int i = 0; i < 4; ++i) {
    EXPECT_THAT(build.device_assignment().computation_devices(i).replica_device_ids(), ElementsAre(i));
  }
  EXPECT_FALSE(build.has_debug_options());
}

TEST_F(RoleTest, ShardedMatmul) {
  auto program = Compile(Job("matmul", 4));
  ASSERT_TRUE(program.ok()) << program.status();
  EXPECT_THAT(Texts(program->parameters()), ElementsAre("KIND_F32 8 8", "KIND_BF16 8 4"));
  EXPECT_THAT(Texts(program->parameter_shards()), ElementsAre("KIND_F32 4 4", "KIND_BF16 8 2"));
  EXPECT_THAT(Texts(program->outputs()), ElementsAre("KIND_F32 8 4", "KIND_F32 8 8"));
  EXPECT_THAT(Texts(program->output_shards()), ElementsAre("KIND_F32 4 4", "KIND_F32 8 8"));
  const xla::OpSharding second = Sharding(program->parameter_shardings(1));
  EXPECT_THAT(second.tile_assignment_dimensions(), ElementsAre(1, 2, 2));
  EXPECT_TRUE(second.replicate_on_last_tile_dim());
}

TEST_F(RoleTest, Donation) {
  auto program = Compile(Job("donate", 1));
  ASSERT_TRUE(program.ok()) << program.status();
  EXPECT_THAT(program->donated(), UnorderedElementsAre(0, 2));
  EXPECT_THAT(Texts(program->parameters()), ElementsAre("KIND_F32 8 8", "KIND_F32 3", "KIND_S8 5"));
  EXPECT_THAT(program->parameter_shardings(), IsEmpty());
  EXPECT_THAT(program->output_layouts(), ElementsAre("{1,0}", "{}", "{0}"));
  EXPECT_FALSE(program->spans_collectives());
}

TEST_F(RoleTest, Pmap) {
  auto program = Compile(Job("pmap", 4));
  ASSERT_TRUE(program.ok()) << program.status();
  EXPECT_THAT(Texts(program->parameter_shards()), ElementsAre("KIND_F32 1 3"));
  EXPECT_EQ(Run(*program, 4, "1,3"),
            "18.0000 22.0000 26.0000\n18.0000 22.0000 26.0000\n18.0000 22.0000 26.0000\n"
            "18.0000 22.0000 26.0000\n");
}

TEST_F(RoleTest, Replicas) {
  auto program = Compile(Job("replicas4", 4));
  ASSERT_TRUE(program.ok()) << program.status();
  EXPECT_TRUE(program->spans_collectives());
  EXPECT_THAT(Texts(program->parameters()), ElementsAre("KIND_F32 3"));
  EXPECT_EQ(Run(*program, 4, "3"),
            "18.0000 22.0000 26.0000\n18.0000 22.0000 26.0000\n18.0000 22.0000 26.0000\n18.0000 22.0000 26.0000\n");
}

TEST_F(RoleTest, LinearAlgebra) {
  auto program = Compile(Job("lapack", 1));
  ASSERT_TRUE(program.ok()) << program.status();
  EXPECT_THAT(program->text(), HasSubstr("lapack_sgeqrf_ffi"));
  // The first entry of Q and of R, of arange(16) as 4x4.
  const std::string out = Run(*program, 1, "4,4");
  EXPECT_THAT(out, HasSubstr("-14.9666"));
}

TEST_F(RoleTest, ShardedBatchesOfMatricesAreNotGathered) {
  auto program = Compile(Job("lapack_batched", 4));
  ASSERT_TRUE(program.ok()) << program.status();
  EXPECT_THAT(program->text(), HasSubstr("lapack_sgeqrf_ffi"));
  EXPECT_THAT(program->text(), Not(HasSubstr("all-gather")));
}

TEST_F(RoleTest, NarrowTypesTokensAndNoOutputs) {
  auto narrow = Compile(Job("narrow", 1));
  ASSERT_TRUE(narrow.ok()) << narrow.status();
  EXPECT_THAT(Texts(narrow->parameters()), ElementsAre("KIND_F32 4", "KIND_U4 4"));
  const auto want = ElementsAre("KIND_F8E8M0FNU 4", "KIND_S4 4", "KIND_PRED 4", "KIND_C64 4");
  EXPECT_THAT(Texts(narrow->outputs()), want);
  EXPECT_THAT(Texts(narrow->output_shards()), want);
  auto tokens = Compile(Job("tokens", 1));
  ASSERT_TRUE(tokens.ok()) << tokens.status();
  EXPECT_THAT(Texts(tokens->parameters()), ElementsAre("KIND_PRED 0", "KIND_F32 3"));
  EXPECT_THAT(Texts(tokens->output_shards()), ElementsAre("KIND_PRED 0", "KIND_F32 3"));
  auto empty = Compile(Job("empty", 1));
  ASSERT_TRUE(empty.ok()) << empty.status();
  EXPECT_EQ(empty->outputs_size(), 0);
  EXPECT_EQ(empty->output_shards_size(), 0);
}

TEST_F(RoleTest, OutputsInHostMemory) {
  auto program = Compile(Job("host_output", 1));
  ASSERT_TRUE(program.ok()) << program.status();
  EXPECT_THAT(program->output_memory_kinds(), ElementsAre("unpinned_host"));
}

TEST_F(RoleTest, OverridesReachXla) {
  auto fast = Compile(Job("fast_math", 1));
  auto plain = Compile(Job("lapack", 1));
  ASSERT_TRUE(fast.ok()) << fast.status();
  EXPECT_NE(fast->fingerprint(), plain->fingerprint());
  EXPECT_EQ(Compile(Job("dump", 1)).status().code(), absl::StatusCode::kUnimplemented);
}

TEST_F(RoleTest, HostCallbacksAreRefusedInWords) {
  for (const char* name : {"debug_print", "pure_callback", "send"}) {
    absl::Status status = Compile(Job(name, 1)).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented) << name << ": " << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("jax.debug.print")) << name;
  }
}

TEST_F(RoleTest, GarbageIsRefused) {
  CompileJob job = Job("psum", 4);
  const std::string good = job.program();
  for (const std::string& bad : {std::string("garbage"), std::string(), std::string("module {}"), good.substr(0, 40),
                                 good.substr(0, good.size() / 2), "ML\xefR" + std::string(100, 'x')}) {
    job.set_program(bad);
    EXPECT_EQ(Compile(job).status().code(), absl::StatusCode::kInvalidArgument) << Compile(job).status();
  }
  EXPECT_EQ(Compile(Job("no_main", 1)).status().code(), absl::StatusCode::kInvalidArgument);
  job.set_program(good);
  job.set_compile_options("\xff\xff garbage");
  EXPECT_EQ(Compile(job).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(Compile(Job("psum", 4)).ok());
}

TEST_F(RoleTest, DevicesMustFit) {
  EXPECT_EQ(Compile(Job("psum", 3)).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Compile(Job("psum", 0)).status().code(), absl::StatusCode::kInvalidArgument);
  absl::Status many = Compile(Job("psum", 129)).status();
  EXPECT_EQ(many.code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(many.message()), HasSubstr("at most 128"));
  CompileJob tpu = Job("psum", 4);
  tpu.set_platform("tpu");
  EXPECT_EQ(Compile(tpu).status().code(), absl::StatusCode::kUnimplemented);
}

// Under FAILED_PRECONDITION where XLA says NOT_FOUND, which clients take for a lost slice.
TEST_F(RoleTest, XlasOwnErrorsArePassedOn) {
  absl::Status status = Compile(Job("unknown_call", 1)).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("no_such_target"));
}

TEST_F(RoleTest, ProgramsOverManyNumbersOfDevices) {
  for (int devices : {2, 3, 4, 5, 6, 7, 2, 4}) {
    auto program = Compile(Job(absl::StrCat("replicas", devices), devices));
    EXPECT_TRUE(program.ok()) << program.status();
  }
}

TEST(CompilerFlags, WhatThisXlaTakesIsSetAndTheRestDoesNoHarm) {
  std::string directory = "/tmp/parkway-xla-flags-XXXXXX";
  ASSERT_NE(mkdtemp(directory.data()), nullptr);
  CompilerPool::Options options;
  options.argv = {COMPILER_ROLE_MAIN, "--xla_tpu_no_such=7", absl::StrCat("--xla_dump_to=", directory),
                  "--xla_llvm_disable_expensive_passes=banana"};
  {
    CompilerPool pool(options);
    std::promise<absl::StatusOr<ProgramRef>> promise;
    pool.Compile(1, Job("psum", 4), [&](absl::StatusOr<ProgramRef> result) { promise.set_value(std::move(result)); });
    const absl::StatusOr<ProgramRef> program = promise.get_future().get();
    ASSERT_TRUE(program.ok()) << program.status();
  }
  int dumped = 0;
  for (const auto& file : std::filesystem::directory_iterator(directory)) {
    dumped += absl::StrContains(file.path().string(), "psum") || absl::StrContains(file.path().string(), "lambda");
  }
  EXPECT_GT(dumped, 0);
  std::filesystem::remove_all(directory);
}

// As the proxy has them: in a pool.
TEST(CompilerPoolWithJaxlib, CompilesOnceAndOutlivesCrashes) {
  CompilerPool::Options options;
  options.argv = {COMPILER_ROLE_MAIN};
  CompilerPool pool(options);
  auto compile = [&](CompileJob job) {
    auto promise = std::make_shared<std::promise<absl::StatusOr<ProgramRef>>>();
    pool.Compile(1, std::move(job),
                 [promise](absl::StatusOr<ProgramRef> result) { promise->set_value(std::move(result)); });
    return promise->get_future().get();
  };
  auto program = compile(Job("psum", 4));
  ASSERT_TRUE(program.ok()) << program.status();
  EXPECT_EQ(compile(Job("psum_reversed", 4))->get(), program->get());
  absl::Status crash = compile(Job("crash", 1)).status();
  EXPECT_EQ(crash.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(crash.message()), HasSubstr("'jit__lambda'"));
  EXPECT_EQ(compile(Job("pure_callback", 1)).status().code(), absl::StatusCode::kUnimplemented);
  EXPECT_EQ(pool.stats().compiled, 2);
  EXPECT_EQ(pool.stats().cached, 1);
}

}  // namespace
}  // namespace parkway::compiler
