// What main.cc dispatches to. Each command takes the arguments after its name and returns the process's exit code:
// 0, 1 for a failure, 2 for arguments that make no sense (said on stderr).
#pragma once

#include <string>
#include <vector>

namespace parkway::cli {

using CommandArguments = std::vector<std::string>;

int Up(const CommandArguments& args);      // up.cc
int Down(const CommandArguments& args);    // client_commands.cc
int Status(const CommandArguments& args);  // client_commands.cc
int Run(const CommandArguments& args);     // client_commands.cc
int Cancel(const CommandArguments& args);  // client_commands.cc
int Logs(const CommandArguments& args);    // client_commands.cc

}  // namespace parkway::cli
