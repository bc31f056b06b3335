#include "manager/rpc.h"

#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <map>
#include <mutex>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/completion_op.h"
#include "base/limits.h"

namespace parkway::manager {
namespace {

constexpr int kKeepaliveMs = 10'000;

// gRPC does not say why a port can't be had; binding it once more does.
std::string WhyNoPort(const std::string& host, int port) {
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  const std::string bare(absl::StripSuffix(absl::StripPrefix(host, "["), "]"));
  if (const int error = getaddrinfo(bare.c_str(), absl::StrCat(port).c_str(), &hints, &found); error != 0) {
    return gai_strerror(error);
  }
  std::string why = "it could not be bound";
  const int fd = socket(found->ai_family, SOCK_STREAM, 0);
  if (fd < 0 || bind(fd, found->ai_addr, found->ai_addrlen) != 0) why = std::strerror(errno);
  if (fd >= 0) close(fd);
  freeaddrinfo(found);
  return why;
}

std::shared_ptr<grpc::Channel> MakeChannel(const std::string& address) {
  grpc::ChannelArguments args;
  args.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  args.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, static_cast<int>(absl::ToInt64Milliseconds(limits::kRetryPeriod)));
  args.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1000);
  args.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, static_cast<int>(absl::ToInt64Milliseconds(limits::kConnectTimeout)));
  args.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveMs);
  args.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kKeepaliveMs);
  args.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  args.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  return grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), args);
}

}  // namespace

std::shared_ptr<grpc::Channel> ManagerChannel(const std::string& address) {
  static std::mutex* mutex = new std::mutex;
  static auto* channels = new std::map<std::string, std::shared_ptr<grpc::Channel>>;
  std::lock_guard lock(*mutex);
  std::shared_ptr<grpc::Channel>& channel = (*channels)[address];
  if (channel == nullptr) channel = MakeChannel(address);
  return channel;
}

CompletionThread::CompletionThread()
    : thread_([this] {
        void* tag = nullptr;
        bool ok = false;
        while (queue_.Next(&tag, &ok)) static_cast<CompletionTag*>(tag)->Run(ok);
      }) {}

CompletionThread::~CompletionThread() {
  queue_.Shutdown();
  thread_.join();
}

absl::StatusOr<Listening> Serve(grpc::Service* service, const std::string& host, int port) {
  grpc::ServerBuilder builder;
  Listening listening;
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveMs);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kKeepaliveMs);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 1000);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PING_STRIKES, 0);
  builder.AddListeningPort(absl::StrCat(host, ":", port), grpc::InsecureServerCredentials(), &listening.port);
  builder.RegisterService(service);
  listening.server = builder.BuildAndStart();
  if (listening.server == nullptr || listening.port == 0) {
    return absl::UnavailableError(absl::StrCat("can't listen on ", host, ":", port, ": ", WhyNoPort(host, port),
                                               "; stop what uses this port, or choose another (--server_port)"));
  }
  return listening;
}

absl::Status FromGrpc(const grpc::Status& status) {
  return absl::Status(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
}

}  // namespace parkway::manager
