// The one binary: every C++ role is a subcommand, under Google's names and flags where they have one.
#include <cstdio>
#include <string>
#include <vector>

#include "cli/commands.h"
#include "cli/roles.h"

namespace parkway::cli {
namespace {

struct Command {
  const char* name;
  int (*run)(const CommandArguments& args);
  const char* help;
};

int Version(const CommandArguments&) {
  std::printf("parkway %s\n", PARKWAY_VERSION);
  return 0;
}

constexpr Command kCommands[] = {
    {"up", Up, "start a cluster on this machine"},
    {"down", Down, "stop it"},
    {"status", Status, "slices, hosts, devices, sessions, programs run, bytes held"},
    {"run", Run, "run a program with JAX's devices on the cluster"},
    {"cancel", Cancel, "end the programs that a session runs; the session goes on"},
    {"logs", Logs, "print the logs of its roles"},
    {"server", Server, "resource manager (--node_type=resource_manager) or worker"},
    {"proxy_server", ProxyServer, "the door that JAX clients connect to"},
    {"engine", Engine, "holds arrays and runs programs for a worker, which starts it"},
    {"compiler", Compiler, "compiles for a proxy, which starts it"},
    {"version", Version, "print the version"},
};

void PrintUsage(FILE* to) {
  std::fprintf(to, "parkway COMMAND [flags]; `parkway COMMAND --help` tells the flags of one\n");
  for (const Command& command : kCommands) std::fprintf(to, "  %-14s %s\n", command.name, command.help);
}

int Main(const std::vector<std::string>& argv) {
  const std::string name = argv.size() > 1 ? argv[1] : "help";
  if (name == "help" || name == "--help" || name == "-h") {
    PrintUsage(stdout);
    return 0;
  }
  for (const Command& command : kCommands) {
    if (name == command.name) return command.run({argv.begin() + 2, argv.end()});
  }
  std::fprintf(stderr, "parkway: no command '%s'\n", name.c_str());
  PrintUsage(stderr);
  return 2;
}

}  // namespace
}  // namespace parkway::cli

int main(int argc, char** argv) { return parkway::cli::Main({argv, argv + argc}); }
