#include "cli/flags.h"

#include <glog/logging.h>

#include <algorithm>
#include <array>
#include <optional>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/status.h"

namespace parkway::cli {
namespace {

// Names that Google's servers take and Parkway has no use for, beyond the prefixes below.
constexpr std::array kGoogleNames = {"alsologtostderr_threshold", "enable_metrics_collection",
                                     "enforce_kernel_ipv6_support", "gcs_scratch_location",
                                     "temporary_flags_for_debugging"};
constexpr std::array kGooglePrefixes = {"xla_",    "megascale_", "tpu_",  "pathways_",       "cloud_pathways_",
                                        "libtpu_", "deepsea_",   "ifrt_", "temporary_flag_", "experimental_",
                                        "grpc_",   "gcs_",       "jax_",  "enable_",         "test_only_"};

std::string Unquoted(absl::string_view value) {
  value = absl::StripAsciiWhitespace(value);
  if (value.size() >= 2 && (value.front() == '\'' || value.front() == '"') && value.back() == value.front()) {
    value = value.substr(1, value.size() - 2);
  }
  return std::string(value);
}

absl::StatusOr<bool> ParseBool(absl::string_view value) {
  const std::string lower = absl::AsciiStrToLower(value);
  for (const char* yes : {"true", "t", "yes", "y", "1"}) {
    if (lower == yes) return true;
  }
  for (const char* no : {"false", "f", "no", "n", "0"}) {
    if (lower == no) return false;
  }
  return absl::InvalidArgumentError("takes true or false");
}

// Edits that make `b` of `a`, two neighbours exchanged counting as one.
int EditDistance(absl::string_view a, absl::string_view b) {
  std::vector<std::vector<int>> d(a.size() + 1, std::vector<int>(b.size() + 1));
  for (size_t i = 0; i <= a.size(); ++i) d[i][0] = static_cast<int>(i);
  for (size_t j = 0; j <= b.size(); ++j) d[0][j] = static_cast<int>(j);
  for (size_t i = 1; i <= a.size(); ++i) {
    for (size_t j = 1; j <= b.size(); ++j) {
      d[i][j] = std::min({d[i - 1][j] + 1, d[i][j - 1] + 1, d[i - 1][j - 1] + (a[i - 1] != b[j - 1] ? 1 : 0)});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        d[i][j] = std::min(d[i][j], d[i - 2][j - 2] + 1);
    }
  }
  return d[a.size()][b.size()];
}

bool IsGoogles(absl::string_view name) {
  return std::find(kGoogleNames.begin(), kGoogleNames.end(), name) != kGoogleNames.end() ||
         std::any_of(kGooglePrefixes.begin(), kGooglePrefixes.end(),
                     [&](const char* prefix) { return absl::StartsWith(name, prefix); });
}

}  // namespace

struct FlagSet::Argument {
  std::string name;  // with underscores
  std::optional<std::string> value;
};

void FlagSet::Add(std::string name, std::string help, std::string kind, std::string default_text,
                  std::function<absl::Status(absl::string_view)> set) {
  flags_.push_back({std::move(name), std::move(help), std::move(kind), std::move(default_text), std::move(set)});
}

void FlagSet::Add(std::string name, std::string* target, std::string help) {
  Add(std::move(name), std::move(help), "TEXT", *target, [target](absl::string_view value) {
    *target = std::string(value);
    return absl::OkStatus();
  });
}

void FlagSet::Add(std::string name, int64_t* target, std::string help) {
  Add(std::move(name), std::move(help), "N", absl::StrCat(*target), [target](absl::string_view value) {
    if (!absl::SimpleAtoi(value, target)) return absl::InvalidArgumentError("takes a whole number");
    return absl::OkStatus();
  });
}

void FlagSet::Add(std::string name, bool* target, std::string help) {
  Add(std::move(name), std::move(help), "bool", *target ? "true" : "false", [target](absl::string_view value) {
    const auto parsed = ParseBool(value);
    if (parsed.ok()) *target = *parsed;
    return parsed.status();
  });
}

void FlagSet::Add(std::string name, absl::Duration* target, std::string help) {
  Add(std::move(name), std::move(help), "DURATION", absl::FormatDuration(*target), [target](absl::string_view value) {
    if (!absl::ParseDuration(value, target))
      return absl::InvalidArgumentError("takes a duration such as 300s or 1m30s");
    return absl::OkStatus();
  });
}

void FlagSet::Add(std::string name, std::vector<std::string>* target, std::string help) {
  Add(std::move(name), std::move(help), "A,B,...", "", [target](absl::string_view value) {
    for (const absl::string_view part : absl::StrSplit(value, ',', absl::SkipWhitespace())) {
      target->push_back(Unquoted(part));
    }
    return absl::OkStatus();
  });
}

void FlagSet::AddPrefix(std::string prefix, std::vector<std::string>* target, std::string help) {
  prefixes_.push_back({std::move(prefix), std::move(help), target});
}

FlagSet::Flag* FlagSet::Find(absl::string_view name) {
  const auto found = std::find_if(flags_.begin(), flags_.end(), [&](const Flag& flag) { return flag.name == name; });
  return found == flags_.end() ? nullptr : &*found;
}

std::string FlagSet::Nearest(absl::string_view name) const {
  std::string best;
  int best_distance = std::max<int>(2, static_cast<int>(name.size()) / 4) + 1;
  for (const Flag& flag : flags_) {
    const int distance = EditDistance(name, flag.name);
    if (distance < best_distance) {
      best_distance = distance;
      best = flag.name;
    }
  }
  return best;
}

absl::Status FlagSet::Unknown(const Argument& argument, std::vector<std::string>* warnings) {
  for (const Prefix& prefix : prefixes_) {
    if (!absl::StartsWith(argument.name, prefix.prefix)) continue;
    prefix.target->push_back(absl::StrCat(argument.name, "=", argument.value.value_or("true")));
    return absl::OkStatus();
  }
  const std::string nearest = Nearest(argument.name);
  const bool typo = !nearest.empty() && EditDistance(argument.name, nearest) <= 2;
  if (IsGoogles(argument.name) && !typo) {
    warnings->push_back(absl::StrCat("--", argument.name, " has no effect in Parkway; it is accepted and left out"));
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat("parkway ", command_, ": no flag --", argument.name,
                                                 nearest.empty()
                                                     ? absl::StrCat("; `parkway ", command_, " --help` lists them")
                                                     : absl::StrCat("; did you mean --", nearest, "?")));
}

absl::Status FlagSet::ParseOne(Argument argument, std::vector<std::string>* warnings) {
  Flag* flag = Find(argument.name);
  if (flag == nullptr && absl::StartsWith(argument.name, "no") && !argument.value.has_value()) {
    flag = Find(argument.name.substr(2));
    if (flag != nullptr && flag->kind != "bool") flag = nullptr;
    if (flag != nullptr) argument.value = "false";
  }
  if (flag == nullptr) return Unknown(argument, warnings);
  if (!argument.value.has_value() && flag->kind == "bool") argument.value = "true";
  if (!argument.value.has_value()) {
    return absl::InvalidArgumentError(
        absl::StrCat("parkway ", command_, ": --", flag->name, " needs a value (--", flag->name, "=", flag->kind, ")"));
  }
  const absl::Status set = flag->set(*argument.value);
  if (set.ok()) return set;
  return absl::InvalidArgumentError(
      absl::StrCat("parkway ", command_, ": --", flag->name, " ", set.message(), ", not '", *argument.value, "'"));
}

// Whether `next` is the value of `argument`, which came without one. Of a flag that is not known here, whatever follows
// it and is no flag.
bool FlagSet::TakesNext(const Argument& argument, absl::string_view next) {
  const Flag* flag = Find(argument.name);
  if (flag != nullptr && flag->kind == "bool") return next == "true" || next == "false";
  if (flag != nullptr) return !absl::StartsWith(next, "--");
  const bool negated = absl::StartsWith(argument.name, "no") && Find(argument.name.substr(2)) != nullptr;
  return !negated && !absl::StartsWith(next, "-");
}

absl::Status FlagSet::Parse(const std::vector<std::string>& args, std::vector<std::string>* warnings) {
  for (size_t i = 0; i < args.size(); ++i) {
    absl::string_view rest = args[i];
    if (rest.empty()) continue;  // an empty variable of a manifest
    if (!absl::ConsumePrefix(&rest, "--") && !absl::ConsumePrefix(&rest, "-")) {
      return absl::InvalidArgumentError(
          absl::StrCat("parkway ", command_, ": '", args[i], "' is no flag; it takes flags only (--name=value)"));
    }
    const size_t equals = rest.find('=');
    Argument argument;
    argument.name = absl::StrReplaceAll(rest.substr(0, equals), {{"-", "_"}});
    if (equals != absl::string_view::npos) {
      argument.value = Unquoted(rest.substr(equals + 1));
    } else if (i + 1 < args.size() && TakesNext(argument, args[i + 1])) {
      argument.value = Unquoted(args[++i]);
    }
    PARKWAY_RETURN_IF_ERROR(ParseOne(std::move(argument), warnings));
  }
  return absl::OkStatus();
}

std::string FlagSet::Help() const {
  std::string text = absl::StrCat("parkway ", command_, " [--flag=value ...]\n");
  for (const Flag& flag : flags_) {
    const std::string form = flag.kind == "bool" ? flag.name : absl::StrCat(flag.name, "=", flag.kind);
    absl::StrAppendFormat(&text, "  --%-34s %s", form, flag.help);
    if (!flag.default_text.empty()) absl::StrAppend(&text, " (", flag.default_text, ")");
    absl::StrAppend(&text, "\n");
  }
  for (const Prefix& prefix : prefixes_) {
    absl::StrAppendFormat(&text, "  --%-34s %s\n", absl::StrCat(prefix.prefix, "*=VALUE"), prefix.help);
  }
  absl::StrAppend(&text,
                  "Other flags of Google's (--xla_*, --megascale_*, --tpu_*, ...) are accepted with a warning.\n");
  return text;
}

void FlagSet::AddLogFlags(std::string* log_dir) {
  const auto number = [this](std::string name, int32_t* target, std::string help) {
    Add(std::move(name), std::move(help), "N", absl::StrCat(*target), [target](absl::string_view value) {
      if (!absl::SimpleAtoi(value, target)) return absl::InvalidArgumentError("takes a whole number");
      return absl::OkStatus();
    });
  };
  Add("log_dir", log_dir, "also write log files there");
  Add("vmodule", &FLAGS_vmodule, "verbosity by source file, e.g. lease=2");
  number("v", &FLAGS_v, "verbosity of the log");
  number("minloglevel", &FLAGS_minloglevel, "leave out messages below this level");
  number("stderrthreshold", &FLAGS_stderrthreshold, "accepted; the log goes to stderr whole");
  for (const char* name : {"alsologtostderr", "logtostderr"}) {
    Add(name, "accepted; the log goes to stderr anyway", "bool", "",
        [](absl::string_view value) { return ParseBool(value).status(); });
  }
}

absl::StatusOr<std::string> ParseAddress(absl::string_view flag, absl::string_view value,
                                         std::vector<std::string>* warnings) {
  const size_t colon = value.rfind(':');
  int port = 0;
  if (colon == absl::string_view::npos || colon == 0 || !absl::SimpleAtoi(value.substr(colon + 1), &port) || port < 1 ||
      port > 65535) {
    return absl::InvalidArgumentError(
        absl::StrCat("--", flag, " takes host:port, such as 10.0.0.1:29001, not '", value, "'"));
  }
  if (absl::StrContains(value, "$(")) {
    warnings->push_back(
        absl::StrCat("--", flag, "=", value, " holds a variable that nobody replaced; taking localhost:", port));
    return absl::StrCat("localhost:", port);
  }
  return std::string(value);
}

}  // namespace parkway::cli
