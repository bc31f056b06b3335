// What gRPC by itself gives between two processes of this machine: the rate of one stream of 1 MiB messages, and the
// round trip of an empty message. Prints one line of JSON: "rate" in GB/s, "round_trip_us" (median).
//
// The server is a child process. It reads a stream to its end and answers once; on the other method it answers each
// message. Both ends are C++ on one completion queue and one thread, messages are raw bytes.
#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

namespace {

constexpr size_t kMessage = 1 << 20;
constexpr char kSink[] = "/parkway.bench/Sink";  // answers once, at the end
constexpr char kEcho[] = "/parkway.bench/Echo";  // answers each message

using Clock = std::chrono::steady_clock;

// One stream on the server: what comes next is always the one event that it waits for.
class Stream {
 public:
  Stream(grpc::AsyncGenericService* service, grpc::ServerCompletionQueue* queue)
      : service_(service), queue_(queue), stream_(&context_) {
    service_->RequestCall(&context_, &stream_, queue_, queue_, this);
  }

  void Run(bool ok) {
    switch (state_) {
      case State::kWaiting:
        if (!ok) break;
        new Stream(service_, queue_);
        echoes_ = context_.method() == kEcho;
        return Read();
      case State::kReading:
        if (ok) return echoes_ ? Write(State::kWriting) : Read();
        return echoes_ ? Finish() : Write(State::kLast);
      case State::kWriting:
        return ok ? Read() : Finish();
      case State::kLast:
        return Finish();
      case State::kFinishing:
        break;
    }
    delete this;
  }

 private:
  enum class State { kWaiting, kReading, kWriting, kLast, kFinishing };
  void Read() {
    state_ = State::kReading;
    stream_.Read(&message_, this);
  }
  void Write(State state) {
    state_ = state;
    stream_.Write(grpc::ByteBuffer(nullptr, 0), this);
  }
  void Finish() {
    state_ = State::kFinishing;
    stream_.Finish(grpc::Status::OK, this);
  }

  grpc::AsyncGenericService* service_;
  grpc::ServerCompletionQueue* queue_;
  grpc::GenericServerContext context_;
  grpc::GenericServerAsyncReaderWriter stream_;
  grpc::ByteBuffer message_;
  State state_ = State::kWaiting;
  bool echoes_ = false;
};

// Serves until it is killed; writes the port to `ready`.
void Serve(const std::string& address, int ready) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort(address, grpc::InsecureServerCredentials(), &port);
  builder.SetMaxReceiveMessageSize(-1);
  builder.AddChannelArgument("grpc.http2.max_frame_size", 1 << 20);
  grpc::AsyncGenericService service;
  builder.RegisterAsyncGenericService(&service);
  auto queue = builder.AddCompletionQueue();
  auto server = builder.BuildAndStart();
  if (server == nullptr) _exit(1);
  new Stream(&service, queue.get());
  if (write(ready, &port, sizeof(port)) != sizeof(port)) _exit(1);
  void* tag = nullptr;
  for (bool ok = false; queue->Next(&tag, &ok);) static_cast<Stream*>(tag)->Run(ok);
}

// One call, each step waited for.
class Call {
 public:
  Call(grpc::GenericStub& stub, const char* method) : call_(stub.PrepareCall(&context_, method, &queue_)) {
    call_->StartCall(nullptr);
    good_ = Wait();
  }
  void Write(const grpc::ByteBuffer& message) {
    call_->Write(message, nullptr);
    good_ = Wait() && good_;
  }
  void Read() {
    call_->Read(&message_, nullptr);
    good_ = Wait() && good_;
  }
  bool End(bool read) {
    call_->WritesDone(nullptr);
    good_ = Wait() && good_;
    if (read) Read();
    grpc::Status status;
    call_->Finish(&status, nullptr);
    return Wait() && good_ && status.ok();
  }

 private:
  bool Wait() {
    void* tag = nullptr;
    bool ok = false;
    return queue_.Next(&tag, &ok) && ok;
  }

  grpc::ClientContext context_;
  grpc::CompletionQueue queue_;
  std::unique_ptr<grpc::GenericClientAsyncReaderWriter> call_;
  grpc::ByteBuffer message_;
  bool good_ = false;
};

// GB/s; 0 when the stream broke.
double MeasureRate(grpc::GenericStub& stub, int messages) {
  static const std::string bytes(kMessage, 'x');
  const grpc::Slice slice(bytes.data(), bytes.size(), grpc::Slice::STATIC_SLICE);
  const grpc::ByteBuffer message(&slice, 1);
  Call call(stub, kSink);
  const auto start = Clock::now();
  for (int i = 0; i < messages; ++i) call.Write(message);
  if (!call.End(/*read=*/true)) return 0;
  const std::chrono::duration<double> took = Clock::now() - start;
  return static_cast<double>(messages) * kMessage / took.count() / 1e9;
}

// Microseconds; 0 when the stream broke.
double MeasureRoundTrip(grpc::GenericStub& stub, int pings) {
  const grpc::ByteBuffer message(nullptr, 0);
  Call call(stub, kEcho);
  std::vector<double> took;
  for (int i = 0; i < pings; ++i) {
    const auto start = Clock::now();
    call.Write(message);
    call.Read();
    took.push_back(std::chrono::duration<double, std::micro>(Clock::now() - start).count());
  }
  if (!call.End(/*read=*/false)) return 0;
  std::sort(took.begin(), took.end());
  return took[took.size() / 2];
}

}  // namespace

int main(int argc, char** argv) {
  std::string unix_path;
  int messages = 256, pings = 2000;
  CLI::App app{"Rate and round trip of a gRPC stream between two processes"};
  app.add_option("--unix", unix_path, "a path to listen on, instead of loopback TCP");
  app.add_option("--messages", messages, "of 1 MiB")->check(CLI::PositiveNumber);
  app.add_option("--pings", pings, "round trips")->check(CLI::PositiveNumber);
  CLI11_PARSE(app, argc, argv);
  int ready[2];
  if (pipe(ready) != 0) return 1;
  // Before gRPC has threads here.
  const pid_t child = fork();
  if (child == 0) {
    close(ready[0]);
    Serve(unix_path.empty() ? "127.0.0.1:0" : "unix:" + unix_path, ready[1]);
    _exit(0);
  }
  close(ready[1]);
  int port = 0;
  if (child < 0 || read(ready[0], &port, sizeof(port)) != sizeof(port)) {
    std::fprintf(stderr, "stream_rate: the server did not start\n");
    return 1;
  }
  grpc::GenericStub stub(
      grpc::CreateChannel(unix_path.empty() ? "127.0.0.1:" + std::to_string(port) : "unix:" + unix_path,
                          grpc::InsecureChannelCredentials()));
  MeasureRate(stub, 16);  // connects, warms up
  const double rate = MeasureRate(stub, messages);
  const double round_trip = MeasureRoundTrip(stub, pings);
  kill(child, SIGKILL);
  if (rate == 0 || round_trip == 0) {
    std::fprintf(stderr, "stream_rate: the stream broke\n");
    return 1;
  }
  std::printf("{\"rate\": %.4f, \"round_trip_us\": %.2f}\n", rate, round_trip);
  return 0;
}
