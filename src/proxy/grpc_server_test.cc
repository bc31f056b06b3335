// The service over real gRPC on loopback, with raw stubs as a client and a core that computes nothing behind it.
#include "proxy/grpc_server.h"

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <future>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "base/machine.h"
#include "proto/ifrt/grpc_ifrt_service.grpc.pb.h"
#include "proxy/fake_session.h"

namespace parkway::proxy {
namespace {

namespace wire = xla::ifrt::proxy;
using testing::HasSubstr;

class GrpcServerTest : public testing::Test {
 protected:
  GrpcServerTest() : core_(executor_.get(), runtime::Topology({{.platform = "cpu", .devices_per_host = 2}})) {}
  ~GrpcServerTest() override {
    if (!directory_.empty()) std::system(("rm -rf " + directory_).c_str());
  }

  void SetUp() override { Start({}); }
  void Start(GrpcServer::Options options) {
    server_.reset();
    options.listen = "127.0.0.1:0";
    auto server = GrpcServer::Start(std::move(options), executor_.get(), &core_);
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    stub_ = Connect(absl::StrCat("127.0.0.1:", server_->port()));
  }
  static std::unique_ptr<wire::GrpcIfrtService::Stub> Connect(const std::string& address) {
    grpc::ChannelArguments arguments;
    arguments.SetInt("grpc.use_local_subchannel_pool", 1);  // a connection of its own
    arguments.SetMaxReceiveMessageSize(-1);
    return wire::GrpcIfrtService::NewStub(
        grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments));
  }

  // Waits, for at most as long as a test may take, until it holds.
  static bool Eventually(std::function<bool()> condition) {
    for (int i = 0; i < 3000; ++i) {
      if (condition()) return true;
      absl::SleepFor(absl::Milliseconds(10));
    }
    return false;
  }

  grpc::Status Store(uint64_t session, uint64_t handle, int64_t announced, const std::string& bytes,
                     size_t chunk = 1 << 20) {
    grpc::ClientContext context;
    AddStoreMetadata(&context, session, handle, announced);
    wire::GrpcHostBufferStoreResponse response;
    auto writer = stub_->HostBufferStore(&context, &response);
    for (size_t i = 0; i < bytes.size(); i += chunk) {
      wire::GrpcHostBufferStoreRequest request;
      request.set_data(bytes.substr(i, chunk));
      if (!writer->Write(request)) break;
    }
    writer->WritesDone();
    return writer->Finish();
  }
  static void AddStoreMetadata(grpc::ClientContext* context, uint64_t session, uint64_t handle, int64_t size) {
    wire::GrpcHostBufferStoreMetadata metadata;
    metadata.set_session_id(session);
    metadata.set_handle(handle);
    metadata.set_buffer_size(size);
    context->AddMetadata("ifrt-proxy-grpc-host-buffer-store-metadata-bin", metadata.SerializeAsString());
  }
  absl::StatusOr<std::string> Lookup(uint64_t session, uint64_t handle) {
    grpc::ClientContext context;
    wire::GrpcHostBufferLookupRequest request;
    request.set_session_id(session);
    request.set_handle(handle);
    auto reader = stub_->HostBufferLookup(&context, request);
    wire::GrpcHostBufferLookupResponse response;
    std::string bytes;
    while (reader->Read(&response)) bytes += response.data();
    const grpc::Status status = reader->Finish();
    if (!status.ok()) return absl::Status(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
    return bytes;
  }

  std::unique_ptr<Executor> executor_ = MakeSerialExecutor();
  FakeCore core_;
  std::unique_ptr<GrpcServer> server_;
  std::unique_ptr<wire::GrpcIfrtService::Stub> stub_;
  std::string directory_;
};

// A client of one session.
class Client {
 public:
  explicit Client(wire::GrpcIfrtService::Stub* stub, int protocol = 25, int serdes = 6) {
    wire::GrpcIfrtSessionMetadata metadata;
    metadata.mutable_version()->set_protocol_version(protocol);
    metadata.mutable_version()->set_ifrt_serdes_version_number(serdes);
    context_.AddMetadata("ifrt-proxy-grpc-ifrt-session-metadata-bin", metadata.SerializeAsString());
    stream_ = stub->IfrtSession(&context_);
  }
  ~Client() {
    if (stream_ != nullptr) End();
  }

  uint64_t Send(wire::IfrtRequest request) {
    request.mutable_request_metadata()->set_op_id(++op_);
    stream_->Write(request);
    return op_;
  }
  wire::IfrtResponse Receive() {
    wire::IfrtResponse response;
    stream_->Read(&response);
    return response;
  }
  wire::IfrtResponse Ask(wire::IfrtRequest request) {
    Send(std::move(request));
    return Receive();
  }
  uint64_t Init() {
    wire::IfrtRequest request;
    request.mutable_init_request();
    return Ask(request).init_response().session_id();
  }
  static wire::IfrtRequest Make(uint64_t handle, int64_t elements) {
    wire::IfrtRequest request;
    auto* make = request.mutable_make_array_from_host_buffer_request();
    make->mutable_dtype()->set_kind(xla::ifrt::DTypeProto::KIND_U8);
    make->mutable_shape()->add_dims(elements);
    make->mutable_sharding()->mutable_serialized_sharding()->set_type_name("xla::ifrt::SingleDeviceSharding");
    make->set_host_buffer_handle(handle);
    make->set_array_handle(handle);
    return request;
  }
  static wire::IfrtRequest Ready(uint64_t handle) {
    wire::IfrtRequest request;
    request.mutable_check_value_ready_request()->add_value_handles(handle);
    return request;
  }
  static wire::IfrtRequest Read(uint64_t array, uint64_t buffer) {
    wire::IfrtRequest request;
    request.mutable_copy_to_host_buffer_request()->set_array_handle(array);
    request.mutable_copy_to_host_buffer_request()->set_host_buffer_handle(buffer);
    return request;
  }
  void Cancel() { context_.TryCancel(); }
  grpc::Status End() {
    Cancel();
    wire::IfrtResponse response;
    while (stream_->Read(&response)) {
    }
    grpc::Status status = stream_->Finish();
    stream_ = nullptr;
    return status;
  }
  grpc::Status Finish() {
    wire::IfrtResponse response;
    while (stream_->Read(&response)) {
    }
    grpc::Status status = stream_->Finish();
    stream_ = nullptr;
    return status;
  }

 private:
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReaderWriter<wire::IfrtRequest, wire::IfrtResponse>> stream_;
  uint64_t op_ = 0;
};

TEST_F(GrpcServerTest, BytesGoInAndOut) {
  Client client(stub_.get());
  const uint64_t session = client.Init();
  uint64_t handle = 1;
  for (size_t size : {size_t{0}, size_t{1}, size_t{5000}, size_t{300'000}, size_t{9} << 20}) {
    SCOPED_TRACE(size);
    std::string bytes(size, '\0');
    for (size_t i = 0; i < size; ++i) bytes[i] = static_cast<char>(i * 31 >> 3);
    EXPECT_TRUE(Store(session, handle, static_cast<int64_t>(size), bytes).ok());
    EXPECT_TRUE(
        client.Ask(Client::Make(handle, static_cast<int64_t>(size))).has_make_array_from_host_buffer_response());
    EXPECT_TRUE(client.Ask(Client::Read(handle, handle + 1)).has_copy_to_host_buffer_response());
    EXPECT_EQ(*Lookup(session, handle + 1), bytes);
    grpc::ClientContext context;
    wire::GrpcHostBufferDeleteRequest request;
    request.set_session_id(session);
    request.set_handle(handle + 1);
    wire::GrpcHostBufferDeleteResponse response;
    EXPECT_TRUE(stub_->HostBufferDelete(&context, request, &response).ok());
    EXPECT_FALSE(Lookup(session, handle + 1).ok());
    handle += 2;
  }
}

TEST_F(GrpcServerTest, RequestsAreHandledInOrderAndEachAnswered) {
  Client client(stub_.get());
  client.Init();
  constexpr int kRequests = 2000;
  std::thread sender([&] {
    for (int i = 1; i <= kRequests; ++i) client.Send(Client::Make(static_cast<uint64_t>(i), 1));
  });
  for (int i = 1; i <= kRequests; ++i) {
    ASSERT_EQ(client.Receive().make_array_from_host_buffer_response().array_handle(), static_cast<uint64_t>(i));
  }
  sender.join();
  absl::Notification checked;
  executor_->Post([&] {
    for (int i = 1; i <= kRequests; ++i) EXPECT_EQ(core_.last->calls[i - 1], absl::StrCat("make ", i));
    checked.Notify();
  });
  checked.WaitForNotification();
}

TEST_F(GrpcServerTest, AReplyThatIsWaitedForIsNotHeldBackByOthers) {
  Client client(stub_.get());
  const uint64_t session = client.Init();
  for (int round = 0; round < 50; ++round) {
    const uint64_t handle = static_cast<uint64_t>(round) + 1;
    client.Send(Client::Make(handle, 1));
    client.Send(Client::Ready(handle));
    EXPECT_TRUE(client.Receive().has_make_array_from_host_buffer_response());
    EXPECT_TRUE(Store(session, handle, 1, "x").ok());
    EXPECT_TRUE(client.Receive().has_check_value_ready_response());
  }
}

TEST_F(GrpcServerTest, ABufferOfAnotherSizeThanAnnouncedIsAnErrorOnBothSides) {
  Client client(stub_.get());
  const uint64_t session = client.Init();
  struct Case {
    int64_t announced;
    size_t sent;
  };
  uint64_t handle = 1;
  for (const Case& c : {Case{100, 99}, Case{100, 101}, Case{0, 1}, Case{1'000'000, 999'999}, Case{1'000'000, 1'100'000},
                        Case{int64_t{1} << 62, 10}, Case{-1, 10}}) {
    SCOPED_TRACE(c.announced);
    client.Ask(Client::Make(handle, 100));
    const grpc::Status status = Store(session, handle, c.announced, std::string(c.sent, 'x'), 1000);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << status.error_message();
    EXPECT_EQ(client.Ask(Client::Ready(handle)).response_metadata().status().code(),
              tensorflow::error::INVALID_ARGUMENT);
    ++handle;
  }
  EXPECT_TRUE(client.Ask(Client::Make(handle, 1)).has_make_array_from_host_buffer_response()) << "the session lives";
}

TEST_F(GrpcServerTest, AHugeAnnouncementTakesNoMemory) {
  Client client(stub_.get());
  const uint64_t session = client.Init();
  std::vector<std::unique_ptr<grpc::ClientContext>> contexts;
  std::vector<std::unique_ptr<grpc::ClientWriter<wire::GrpcHostBufferStoreRequest>>> writers;
  wire::GrpcHostBufferStoreResponse response;
  const int64_t before = AvailableMemoryBytes();
  for (uint64_t handle = 1; handle <= 8; ++handle) {
    contexts.push_back(std::make_unique<grpc::ClientContext>());
    AddStoreMetadata(contexts.back().get(), session, handle, int64_t{1} << 32);
    writers.push_back(stub_->HostBufferStore(contexts.back().get(), &response));
    writers.back()->Write({});
  }
  client.Ask(Client::Make(99, 1));
  EXPECT_GT(AvailableMemoryBytes(), before - (int64_t{1} << 32));
  for (size_t i = 0; i < writers.size(); ++i) {
    contexts[i]->TryCancel();
    writers[i]->Finish();
  }
}

TEST_F(GrpcServerTest, AStoreThatStallsIsDroppedAndItsArrayFails) {
  Start({.stall = absl::Milliseconds(200)});
  Client client(stub_.get());
  const uint64_t session = client.Init();
  client.Ask(Client::Make(1, 100));
  client.Ask(Client::Make(2, 100));  // nobody ever begins to store it
  grpc::ClientContext context;
  AddStoreMetadata(&context, session, 1, 100);
  wire::GrpcHostBufferStoreResponse response;
  auto writer = stub_->HostBufferStore(&context, &response);
  wire::GrpcHostBufferStoreRequest half;
  half.set_data(std::string(50, 'x'));
  writer->Write(half);
  EXPECT_EQ(client.Ask(Client::Ready(1)).response_metadata().status().code(), tensorflow::error::ABORTED);
  EXPECT_EQ(client.Ask(Client::Ready(2)).response_metadata().status().code(), tensorflow::error::ABORTED);
  EXPECT_FALSE(writer->Finish().ok());
}

TEST_F(GrpcServerTest, AGuessedSessionIdReachesNothing) {
  Client client(stub_.get());
  const uint64_t session = client.Init();
  EXPECT_NE(session, 0);
  EXPECT_TRUE(Store(session, 1, 3, "abc").ok());
  client.Ask(Client::Make(1, 3));
  client.Ask(Client::Read(1, 2));
  for (uint64_t guess : {uint64_t{0}, uint64_t{1}, session + 1, session - 1}) {
    EXPECT_EQ(Store(guess, 5, 3, "abc").error_code(), grpc::StatusCode::PERMISSION_DENIED);
    EXPECT_EQ(Lookup(guess, 2).status().code(), absl::StatusCode::kPermissionDenied);
    grpc::ClientContext context;
    wire::GrpcHostBufferDeleteRequest request;
    request.set_session_id(guess);
    request.set_handle(2);
    wire::GrpcHostBufferDeleteResponse response;
    EXPECT_EQ(stub_->HostBufferDelete(&context, request, &response).error_code(), grpc::StatusCode::PERMISSION_DENIED);
  }
  EXPECT_EQ(*Lookup(session, 2), "abc");
}

TEST_F(GrpcServerTest, VersionsAreNegotiatedAndNeverOutsideTheClientsRange) {
  auto ask = [&](int min_protocol, int max_protocol, int min_serdes, int max_serdes) {
    grpc::ClientContext context;
    wire::GrpcGetVersionRequest request;
    request.mutable_min_version()->set_protocol_version(min_protocol);
    request.mutable_max_version()->set_protocol_version(max_protocol);
    request.mutable_min_version()->set_ifrt_serdes_version_number(min_serdes);
    request.mutable_max_version()->set_ifrt_serdes_version_number(max_serdes);
    wire::GrpcGetVersionResponse response;
    const grpc::Status status = stub_->GetVersion(&context, request, &response);
    return std::pair(status, response.version());
  };
  EXPECT_EQ(ask(16, 25, 2, 6).second.protocol_version(), 25);
  EXPECT_EQ(ask(16, 25, 0, 3).second.ifrt_serdes_version_number(), 3);
  EXPECT_EQ(ask(26, 30, 2, 6).first.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_EQ(ask(1, 15, 2, 6).first.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_EQ(ask(16, 25, 0, 2).first.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_EQ(Client(stub_.get(), 30, 6).Finish().error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  Start({.versions = {.protocol = {16, 20}, .serdes = {3, 4}}});
  EXPECT_EQ(ask(16, 25, 2, 6).second.protocol_version(), 20);
  EXPECT_EQ(ask(16, 25, 2, 6).second.ifrt_serdes_version_number(), 4);
  grpc::ClientContext context;  // no metadata at all
  auto stream = stub_->IfrtSession(&context);
  EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::INVALID_ARGUMENT);
}

TEST_F(GrpcServerTest, FourThousandStoresAtOnce) {
  Client client(stub_.get());
  const uint64_t session = client.Init();
  constexpr int kStores = 4000;
  grpc::CompletionQueue queue;
  struct Call {
    grpc::ClientContext context;
    wire::GrpcHostBufferStoreResponse response;
    wire::GrpcHostBufferStoreRequest request;
    std::unique_ptr<grpc::ClientAsyncWriter<wire::GrpcHostBufferStoreRequest>> writer;
    grpc::Status status;
    int step = 0;
  };
  std::vector<Call> calls(kStores);
  for (int i = 0; i < kStores; ++i) {
    AddStoreMetadata(&calls[i].context, session, static_cast<uint64_t>(i) + 1, 4);
    calls[i].request.set_data("abcd");
    calls[i].writer = stub_->AsyncHostBufferStore(&calls[i].context, &calls[i].response, &queue, &calls[i]);
  }
  // All are open before the first one sends anything.
  void* tag = nullptr;
  bool ok = false;
  for (int i = 0; i < kStores; ++i) ASSERT_TRUE(queue.Next(&tag, &ok) && ok);
  for (Call& call : calls) call.writer->Write(call.request, &call);
  for (int done = 0; done < kStores;) {
    ASSERT_TRUE(queue.Next(&tag, &ok) && ok);
    Call& call = *static_cast<Call*>(tag);
    if (call.step == 0) call.writer->WritesDone(&call);
    if (call.step == 1) call.writer->Finish(&call.status, &call);
    if (call.step == 2) ++done;
    ++call.step;
  }
  for (Call& call : calls) EXPECT_TRUE(call.status.ok()) << call.status.error_message();
  for (int i = 1; i <= kStores; ++i) client.Send(Client::Make(static_cast<uint64_t>(i), 4));
  wire::IfrtRequest ready;
  for (int i = 1; i <= kStores; ++i) ready.mutable_check_value_ready_request()->add_value_handles(i);
  client.Send(ready);
  int made = 0, were_ready = 0;
  for (int i = 0; i <= kStores; ++i) {
    const wire::IfrtResponse reply = client.Receive();
    made += reply.has_make_array_from_host_buffer_response();
    were_ready += reply.has_check_value_ready_response();
  }
  EXPECT_EQ(made, kStores);
  EXPECT_EQ(were_ready, 1);
}

TEST_F(GrpcServerTest, ADeadClientLeavesNothing) {
  {
    Client client(stub_.get());
    const uint64_t session = client.Init();
    EXPECT_TRUE(Store(session, 1, 3, "abc").ok());
    client.Send(Client::Make(1, 3));
    client.Send(Client::Make(2, 3));  // whose bytes never come
    client.Send(Client::Ready(2));    // is never answered
    client.Send(Client::Read(1, 3));
    client.Receive();
    client.Cancel();
    EXPECT_TRUE(Eventually([&] { return core_.open == 0 && server_->sessions() == 0; }));
    EXPECT_EQ(Lookup(session, 3).status().code(), absl::StatusCode::kPermissionDenied);
  }
  Client next(stub_.get());
  EXPECT_NE(next.Init(), 0);
}

TEST_F(GrpcServerTest, OutOfCreditTheRequestsWaitButNotTheBuffers) {
  core_.prepare = [](FakeSession& session) { session.credit = false; };
  Client client(stub_.get());
  const uint64_t session = client.Init();  // after it nothing more is read
  client.Send(Client::Make(1, 3));
  EXPECT_TRUE(Store(session, 1, 3, "abc").ok());
  absl::Notification looked;
  executor_->Post([&] {
    EXPECT_TRUE(core_.last->calls.empty());
    core_.last->GiveCredit();
    looked.Notify();
  });
  looked.WaitForNotification();
  EXPECT_TRUE(client.Receive().has_make_array_from_host_buffer_response());
}

TEST_F(GrpcServerTest, AClientThatReadsNoRepliesStopsOnlyItself) {
  Client deaf(stub_.get());
  deaf.Init();
  std::atomic<int> sent{0};
  std::thread sender([&] {
    // Far more replies than are kept; writing stops when nothing is read any more.
    wire::IfrtRequest request;
    request.mutable_get_default_layout_request()->mutable_dtype()->set_kind(xla::ifrt::DTypeProto::KIND_F32);
    for (int i = 0; i < 200'000; ++i) {
      deaf.Send(request);
      ++sent;
    }
  });
  Client other(stub_.get());
  EXPECT_NE(other.Init(), 0);
  Eventually([&] { return sent > 20'000; });
  EXPECT_TRUE(other.Ask(Client::Make(1, 1)).has_make_array_from_host_buffer_response());
  deaf.Cancel();
  sender.join();
  EXPECT_TRUE(Eventually([&] { return core_.open == 1; }));
}

TEST_F(GrpcServerTest, GarbageOnThePortHarmsNobody) {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(server_->port()));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  ASSERT_EQ(connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  std::string garbage(100'000, '\xfe');
  send(fd, garbage.data(), garbage.size(), MSG_NOSIGNAL);
  Client client(stub_.get());
  EXPECT_NE(client.Init(), 0);
  close(fd);
}

TEST_F(GrpcServerTest, APortInUseIsAnError) {
  GrpcServer::Options options;
  options.listen = absl::StrCat("127.0.0.1:", server_->port());
  auto second = GrpcServer::Start(options, executor_.get(), &core_);
  EXPECT_EQ(second.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(second.status().message()), HasSubstr(options.listen));
}

TEST_F(GrpcServerTest, AUnixSocketAndADirectoryForLargeBuffers) {
  char name[] = "/tmp/parkway_server_XXXXXX";
  directory_ = mkdtemp(name);
  GrpcServer::Options options;
  options.unix_path = directory_ + "/s";
  options.transfer_directory = directory_;
  Start(options);
  struct stat st;
  ASSERT_EQ(stat(options.unix_path.c_str(), &st), 0);
  EXPECT_EQ(st.st_mode & 077, 0) << "for this user alone";
  stub_ = Connect("unix:" + options.unix_path);
  Client client(stub_.get());
  const uint64_t session = client.Init();
  std::ofstream(directory_ + "/lt_1") << "hello";
  auto read = [&](uint64_t id, uint64_t handle, int64_t size) {
    grpc::ClientContext context;
    wire::GrpcHostBufferReadFromDiskRequest request;
    request.mutable_metadata()->set_session_id(id);
    request.mutable_metadata()->set_handle(handle);
    request.mutable_metadata()->set_buffer_size(size);
    wire::GrpcHostBufferReadFromDiskResponse response;
    return stub_->HostBufferReadFromDisk(&context, request, &response).error_code();
  };
  EXPECT_EQ(read(session + 1, 1, 5), grpc::StatusCode::PERMISSION_DENIED);
  EXPECT_EQ(read(session, 1, 5), grpc::StatusCode::OK);
  EXPECT_EQ(read(session, 2, 5), grpc::StatusCode::FAILED_PRECONDITION);
  client.Ask(Client::Make(1, 5));
  client.Ask(Client::Read(1, 9));
  EXPECT_EQ(*Lookup(session, 9), "hello");
  client.Ask(Client::Make(2, 5));
  EXPECT_EQ(client.Ask(Client::Ready(2)).response_metadata().status().code(), tensorflow::error::FAILED_PRECONDITION);
}

TEST_F(GrpcServerTest, TheServerEndsWhileClientsAreThere) {
  Client client(stub_.get());
  client.Init();
  client.Send(Client::Make(1, 3));
  client.Send(Client::Ready(1));
  server_.reset();
  EXPECT_EQ(core_.open, 0);
  EXPECT_FALSE(client.Finish().ok());
}

}  // namespace
}  // namespace parkway::proxy
