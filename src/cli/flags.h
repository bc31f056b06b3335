// Command lines of the server roles. They are Google's: manifests and scripts written for Cloud Pathways start Parkway
// unchanged. A FlagSet knows the flags that mean something here; others of Google's are accepted with a warning, since
// hundreds of names stand in people's manifests; whatever is left is a mistake, and is refused with the nearest name.
//
// Accepted forms: --flag=value, --flag value, -flag=value, --bool, --bool=true, --nobool; underscores or hyphens; a
// value in quotes that a manifest passed through. One thread.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace parkway::cli {

class FlagSet {
 public:
  explicit FlagSet(std::string command) : command_(std::move(command)) {}

  // `target` holds the default and outlives Parse.
  void Add(std::string name, std::string* target, std::string help);
  void Add(std::string name, int64_t* target, std::string help);
  void Add(std::string name, bool* target, std::string help);
  void Add(std::string name, absl::Duration* target, std::string help);
  void Add(std::string name, std::vector<std::string>* target, std::string help);  // comma list; given again: appended

  // Takes every flag of a name that begins so, and is none of the others, as "name=value"; one without a value is true.
  void AddPrefix(std::string prefix, std::vector<std::string>* target, std::string help);

  // Flags of glog's that every role takes: v, vmodule, minloglevel, log_dir, ...
  void AddLogFlags(std::string* log_dir);

  // Sets the targets. `args` holds no command name. INVALID_ARGUMENT names the argument that is wrong, and what was
  // meant as far as that can be guessed. Flags that are accepted and do nothing are told in `warnings`.
  absl::Status Parse(const std::vector<std::string>& args, std::vector<std::string>* warnings);

  std::string Help() const;

 private:
  struct Flag {
    std::string name;
    std::string help;
    std::string kind;  // "bool", or what the value is called in the help
    std::string default_text;
    std::function<absl::Status(absl::string_view value)> set;
  };
  struct Prefix {
    std::string prefix, help;
    std::vector<std::string>* target;
  };
  struct Argument;

  void Add(std::string name, std::string help, std::string kind, std::string default_text,
           std::function<absl::Status(absl::string_view)> set);
  Flag* Find(absl::string_view name);
  bool TakesNext(const Argument& argument, absl::string_view next);
  absl::Status ParseOne(Argument argument, std::vector<std::string>* warnings);
  absl::Status Unknown(const Argument& argument, std::vector<std::string>* warnings);
  std::string Nearest(absl::string_view name) const;  // empty: none is near

  std::string command_;
  std::vector<Flag> flags_;
  std::vector<Prefix> prefixes_;
};

// "host:port" of another role. A variable of Kubernetes that nobody replaced, as in "$(PATHWAYS_HEAD):29001", becomes
// localhost, with a warning. INVALID_ARGUMENT for anything that is no host:port.
absl::StatusOr<std::string> ParseAddress(absl::string_view flag, absl::string_view value,
                                         std::vector<std::string>* warnings);

}  // namespace parkway::cli
