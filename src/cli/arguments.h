// What the commands for people (up, down, status, run, logs) share: their arguments are CLI11's, their errors go to
// stderr in one form.
#pragma once

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace parkway::cli {

// The exit code when the command is not to go on: after --help, or 2 for wrong arguments, said on stderr.
inline std::optional<int> ParseArguments(CLI::App& app, std::vector<std::string> args) {
  std::reverse(args.begin(), args.end());  // CLI11 takes them so
  try {
    app.parse(args);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  return std::nullopt;
}

// Says why on stderr; the exit code.
inline int Fail(const absl::Status& status) {
  std::fprintf(stderr, "parkway: %s\n", std::string(status.message()).c_str());
  return absl::IsInvalidArgument(status) ? 2 : 1;
}

}  // namespace parkway::cli
