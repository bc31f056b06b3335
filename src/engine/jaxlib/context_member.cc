// One host of a context, for jaxlib_context_test: an engine that does what lines on its standard input say, and answers
// in lines. Contexts and their launches have a thread each, as in a real engine.
//
//   open C RANK DEVICES...   one number of devices for each member; lease device ids count up over them
//   key C HEX HEX            a coordination key and its value, from another member
//   run C ROUNDS NAME IDS... | NAME IDS... | ...   chains of all-reduces, each over the lease devices named; ROUNDS
//                            times all of them, pipelined, and every value of every round checked
//   loop C NAME IDS...       all-reduces until one fails
//   adopt C                  launches in the local client on the last loop's results
//   close C
//   stats
#include <dirent.h>
#include <stdio.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <iostream>
#include <map>
#include <mutex>
#include <numeric>
#include <sstream>
#include <thread>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/synchronization/notification.h"
#include "base/status.h"
#include "engine/conformance.h"
#include "engine/jaxlib/jaxlib_engine.h"

namespace parkway::engine {
namespace {

void Say(const std::string& line) {
  static std::mutex mutex;
  std::lock_guard lock(mutex);
  std::cout << absl::StrReplaceAll(line, {{"\n", " "}}) << std::endl;
}

int CountEntries(const char* path) {
  int count = 0;
  DIR* directory = opendir(path);
  while (readdir(directory) != nullptr) ++count;
  closedir(directory);
  return count;
}

struct Joined {
  ContextRef context;
  int first_device = 0;
  int num_local = 0;
  std::vector<std::pair<std::string, std::string>> keys;  // that came before the context
  std::vector<ArrayRef> last;
  std::thread runner;
};

class Member {
 public:
  explicit Member(int devices)
      : devices_(devices), engine_(MakeJaxlibEngine({.devices = devices})), programs_(getenv("PARKWAY_TEST_PROGRAMS")) {
    if (!engine_.ok()) {
      std::cerr << engine_.status() << std::endl;
      _exit(1);
    }
  }

  void Serve() {
    std::string line;
    while (std::getline(std::cin, line)) {
      std::istringstream words(line);
      std::string command;
      words >> command;
      if (command == "stats") {
        Say(absl::StrCat("stats ", CountEntries("/proc/self/task"), " ", CountEntries("/proc/self/fd")));
        continue;
      }
      uint64_t id = 0;
      words >> id;
      Joined& joined = contexts_[id];
      if (command == "open") Open(id, words, joined);
      if (command == "key") Key(words, joined);
      if (command == "run" || command == "loop") {
        if (joined.runner.joinable()) joined.runner.join();
        std::string rest;
        std::getline(words, rest);
        joined.runner = std::thread([this, id, rest, &joined, loop = command == "loop"] {
          const absl::Status end = loop ? Loop(joined, rest) : Run(joined, rest);
          Say(absl::StrCat(loop ? "ended " : "ran ", id, " ", end.ToString()));
        });
      }
      if (command == "adopt") Say(absl::StrCat("adopted ", id, " ", Adopt(joined).ToString()));
      if (command == "close") {
        (*engine_)->CloseContext(joined.context, absl::DataLossError("slice 1 is lost"), [this, id, &joined] {
          if (joined.runner.joinable()) joined.runner.join();
          joined.context = nullptr;
          joined.last.clear();
          Say(absl::StrCat("closed ", id));
        });
      }
    }
    _exit(0);
  }

 private:
  struct Chain {
    std::string name;
    std::vector<int> ids, locals;
    ExecutableRef executable;
    ArrayRef argument;
    float sum = 0;
    int elements = 0;
  };

  void Open(uint64_t id, std::istringstream& words, Joined& joined) {
    ContextSpec spec;
    spec.id = id;
    words >> spec.rank;
    int next = 0;
    for (int count; words >> count;) {
      ContextMember& member = spec.members.emplace_back();
      member.rank = static_cast<int>(spec.members.size()) - 1;
      for (int i = 0; i < count; ++i) member.devices.push_back(next++);
    }
    joined.first_device = spec.members[spec.rank].devices[0];
    spec.publish = [id](const std::string& key, const std::string& value) {
      Say(absl::StrCat("key ", id, " ", absl::BytesToHexString(key), " ", absl::BytesToHexString(value)));
    };
    absl::Notification opened;
    (*engine_)->OpenContext(std::move(spec), [&](absl::StatusOr<ContextRef> context) {
      if (context.ok()) joined.context = *context;
      Say(absl::StrCat("opened ", id, " ", context.status().ToString()));
      opened.Notify();
    });
    opened.WaitForNotification();
    GiveKeys(joined);
  }

  void Key(std::istringstream& words, Joined& joined) {
    std::string key, value;
    words >> key >> value;
    joined.keys.emplace_back(absl::HexStringToBytes(key), absl::HexStringToBytes(value));
    GiveKeys(joined);
  }

  void GiveKeys(Joined& joined) {
    if (joined.context == nullptr) return;  // not open yet
    for (const auto& [key, value] : joined.keys) joined.context->OnKey(key, value);
    joined.keys.clear();
  }

  // The argument's shard on lease device d is all d + 1.
  absl::StatusOr<Chain> MakeChain(const Joined& joined, const std::string& text) {
    Chain chain;
    std::istringstream words(text);
    words >> chain.name;
    LoadSpec spec;
    for (int id; words >> id;) {
      const int local = id - joined.first_device;
      const bool here = local >= 0 && local < devices_;
      chain.ids.push_back(id);
      chain.sum += static_cast<float>(id + 1);
      if (here) chain.locals.push_back(local);
      spec.local_devices.push_back(here ? local : -1);
    }
    if (chain.locals.empty()) return chain;
    PARKWAY_ASSIGN_OR_RETURN(TestProgram program, ReadTestProgram(programs_, chain.name));
    chain.elements = static_cast<int>(program.parameters[0].dims[0]);
    std::vector<HostShard> shards;
    for (int local : chain.locals) {
      std::vector<float> values(chain.elements, static_cast<float>(joined.first_device + local + 1));
      shards.push_back({local, program.parameters[0],
                        Bytes::OfString(std::string(reinterpret_cast<const char*>(values.data()), 4 * values.size()))});
    }
    PARKWAY_ASSIGN_OR_RETURN(chain.argument, (*engine_)->MakeArray("", std::move(shards)));
    spec.context = joined.context;
    spec.name = chain.name;
    spec.program = Bytes::OfString(program.executable);
    spec.compile_options = program.compile_options;
    spec.device_ids = chain.ids;
    spec.parameters = program.parameters;
    spec.outputs = program.outputs;
    PARKWAY_ASSIGN_OR_RETURN(chain.executable, (*engine_)->Load(spec));
    return chain;
  }

  absl::Status Check(const ArrayRef& array, const Chain& chain) {
    for (int local : chain.locals) {
      absl::Status status;
      absl::Notification viewed;
      (*engine_)->View(array, local, [&](absl::StatusOr<Bytes> bytes) {
        status = bytes.status();
        for (int i = 0; status.ok() && i < chain.elements; ++i) {
          float value = 0;
          std::memcpy(&value, bytes->data + size_t{4} * i, 4);
          if (value != chain.sum)
            status = absl::UnknownError(absl::StrCat(chain.name, " gave ", value, " for ", chain.sum));
        }
        viewed.Notify();
      });
      viewed.WaitForNotification();
      PARKWAY_RETURN_IF_ERROR(status);
    }
    return absl::OkStatus();
  }

  absl::Status Run(Joined& joined, const std::string& text) {
    std::istringstream words(text);
    int rounds = 0;
    words >> rounds;
    std::vector<Chain> chains;
    for (std::string part; std::getline(words, part, '|');) {
      PARKWAY_ASSIGN_OR_RETURN(Chain chain, MakeChain(joined, part));
      if (!chain.locals.empty()) chains.push_back(std::move(chain));
    }
    std::vector<std::pair<ArrayRef, const Chain*>> outputs;
    for (int round = 0; round < rounds; ++round) {
      for (const Chain& chain : chains) {
        PARKWAY_ASSIGN_OR_RETURN(LaunchResult result, (*engine_)->Launch(*chain.executable, {chain.argument}, {},
                                                                         [](const absl::Status&) {}));
        outputs.emplace_back(result.outputs[0], &chain);
      }
    }
    for (const auto& [array, chain] : outputs) PARKWAY_RETURN_IF_ERROR(Check(array, *chain));
    return absl::OkStatus();
  }

  absl::Status Loop(Joined& joined, const std::string& text) {
    PARKWAY_ASSIGN_OR_RETURN(Chain chain, MakeChain(joined, text));
    while (true) {
      absl::Notification ended;
      absl::Status end;
      PARKWAY_ASSIGN_OR_RETURN(LaunchResult result, (*engine_)->Launch(*chain.executable, {chain.argument}, {},
                                                                       [&](const absl::Status& status) {
                                                                         end = status;
                                                                         ended.Notify();
                                                                       }));
      ended.WaitForNotification();
      PARKWAY_RETURN_IF_ERROR(end);
      PARKWAY_RETURN_IF_ERROR(Check(result.outputs[0], chain));
      joined.last = result.outputs;
    }
  }

  // The sum of a context's result with itself, in the local client.
  absl::Status Adopt(Joined& joined) {
    if (joined.last.empty()) return absl::FailedPreconditionError("no result yet");
    PARKWAY_ASSIGN_OR_RETURN(TestProgram program, ReadTestProgram(programs_, "add"));
    LoadSpec spec;
    spec.name = "add";
    spec.program = Bytes::OfString(program.executable);
    spec.compile_options = program.compile_options;
    spec.device_ids = spec.local_devices = {0};
    spec.parameters = program.parameters;
    spec.outputs = program.outputs;
    PARKWAY_ASSIGN_OR_RETURN(ExecutableRef add, (*engine_)->Load(spec));
    PARKWAY_ASSIGN_OR_RETURN(ArrayRef piece, (*engine_)->Assemble({{joined.last[0], 0}}));
    absl::Notification ended;
    absl::Status end;
    PARKWAY_ASSIGN_OR_RETURN(LaunchResult result,
                             (*engine_)->Launch(*add, {piece, piece}, {}, [&](const absl::Status& status) {
                               end = status;
                               ended.Notify();
                             }));
    ended.WaitForNotification();
    return end;
  }

  const int devices_;
  absl::StatusOr<std::unique_ptr<Engine>> engine_;
  const std::string programs_;
  std::map<uint64_t, Joined> contexts_;
};

}  // namespace
}  // namespace parkway::engine

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  parkway::engine::Member member(atoi(argv[1]));
  member.Serve();
}
