#include "cli/status_text.h"

#include <array>
#include <nlohmann/json.hpp>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "manager/slice_type.h"
#include "proto/parkway/manager.pb.h"

namespace parkway::cli {
namespace {

struct Totals {
  int devices = 0;
  int hosts = 0;
  int64_t sessions = 0, arrays = 0, executables = 0;
  uint64_t programs_run = 0, bytes_held = 0;
};

Totals Sum(const ManagerStatus& status) {
  Totals totals;
  for (const SliceStatus& slice : status.slices()) {
    for (const WorkerStatus& worker : slice.workers()) {
      totals.hosts += worker.alive();
      totals.devices += worker.alive() ? worker.devices() : 0;
    }
  }
  for (const LeaseStatus& lease : status.leases()) {
    totals.sessions += lease.report().sessions();
    totals.programs_run += lease.report().programs_run();
    totals.bytes_held += lease.report().bytes_held();
    totals.arrays += static_cast<int64_t>(lease.report().arrays());
    totals.executables += static_cast<int64_t>(lease.report().executables());
  }
  return totals;
}

std::string LeaseSlices(const LeaseStatus& lease) {
  return absl::StrJoin(lease.slices(), ", ", [](std::string* out, const SliceType& type) {
    absl::StrAppend(out, manager::SliceTypeName(type));
  });
}

std::string SessionName(const LeaseStatus& lease, const SessionReport& session) {
  return absl::StrCat(lease.epoch(), ".", session.session());
}

}  // namespace

absl::StatusOr<SessionId> ParseSessionId(const std::string& text) {
  const std::vector<std::string> parts = absl::StrSplit(text, '.');
  SessionId id;
  if (parts.size() == 2 && absl::SimpleAtoi(parts[0], &id.lease_epoch) && absl::SimpleAtoi(parts[1], &id.session) &&
      id.session != 0) {
    return id;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("'", text, "' is no session; `parkway status` lists them, they look like 1.3"));
}

std::string SessionsText(const ManagerStatus& status) {
  std::string text;
  for (const LeaseStatus& lease : status.leases()) {
    for (const SessionReport& session : lease.report().by_session()) {
      std::string runs = "-";
      if (!session.program().empty()) {
        runs = absl::StrFormat("%s for %.0f s", session.program(), session.running_seconds());
      }
      absl::StrAppendFormat(&text, "%-9s %-30s %-9d %-11s %s\n", SessionName(lease, session), session.client(),
                            session.launches(), BytesText(session.bytes_held()), runs);
    }
    const int more = lease.report().sessions() - lease.report().by_session_size();
    if (more > 0) absl::StrAppend(&text, "(", more, " more of the proxy ", lease.owner(), ")\n");
  }
  if (text.empty()) return text;
  return absl::StrFormat("%-9s %-30s %-9s %-11s %s\n", "SESSION", "CLIENT", "LAUNCHES", "BYTES", "RUNS") + text;
}

std::string BytesText(uint64_t bytes) {
  constexpr std::array kUnits = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  auto value = static_cast<double>(bytes);
  size_t unit = 0;
  for (; value >= 1024 && unit + 1 < kUnits.size(); ++unit) value /= 1024;
  return unit == 0 ? absl::StrCat(bytes, " B") : absl::StrFormat("%.1f %s", value, kUnits[unit]);
}

std::string StatusText(const ManagerStatus& status, const ClusterRecord& record) {
  const Totals totals = Sum(status);
  std::string text;
  if (!record.name.empty()) {
    absl::StrAppend(&text, "cluster '", record.name, "'  proxy ", record.proxy_address, "  manager ",
                    record.manager_address, "  supervisor process ", record.supervisor_pid, "\n");
  }
  absl::StrAppend(&text, "devices ", totals.devices, "  hosts ", totals.hosts, "  sessions ", totals.sessions,
                  "  programs run ", totals.programs_run, "  arrays ", totals.arrays, "  bytes held ",
                  BytesText(totals.bytes_held), "\n\n");
  absl::StrAppendFormat(&text, "%-14s %-10s %-8s %-28s %-8s %-9s %s\n", "SLICE", "TYPE", "READY", "HOST", "DEVICES",
                        "PROCESS", "STATE");
  for (const SliceStatus& slice : status.slices()) {
    for (const WorkerStatus& worker : slice.workers()) {
      absl::StrAppendFormat(&text, "%-14s %-10s %-8s %-28s %-8d %-9d %s\n", slice.name(),
                            manager::SliceTypeName(slice.type()), slice.ready() ? "yes" : "no", worker.name(),
                            worker.devices(), worker.pid(), worker.state());
    }
  }
  const int missing = status.expected_slices() - status.slices_size();
  if (missing > 0) absl::StrAppend(&text, "(", missing, " slices have not come yet)\n");
  for (const LeaseStatus& lease : status.leases()) {
    absl::StrAppend(&text, "\nproxy ", lease.owner(), " holds ", LeaseSlices(lease),
                    lease.placed() ? "" : absl::StrCat("; waiting for ", lease.waiting_for()), "\n");
  }
  if (const std::string sessions = SessionsText(status); !sessions.empty()) absl::StrAppend(&text, "\n", sessions);
  return text;
}

std::string StatusJson(const ManagerStatus& status, const ClusterRecord& record) {
  const Totals totals = Sum(status);
  nlohmann::json slices = nlohmann::json::array(), leases = nlohmann::json::array(), roles = nlohmann::json::array();
  for (const SliceStatus& slice : status.slices()) {
    nlohmann::json hosts = nlohmann::json::array();
    for (const WorkerStatus& worker : slice.workers()) {
      hosts.push_back({{"name", worker.name()},
                       {"address", worker.address()},
                       {"pid", worker.pid()},
                       {"devices", worker.devices()},
                       {"alive", worker.alive()},
                       {"state", worker.state()},
                       {"engine_up", worker.engine_up()},
                       {"engine_pid", worker.engine_pid()}});
    }
    slices.push_back({{"name", slice.name()},
                      {"type", manager::SliceTypeName(slice.type())},
                      {"ready", slice.ready()},
                      {"lease", slice.lease()},
                      {"hosts", hosts}});
  }
  for (const LeaseStatus& lease : status.leases()) {
    nlohmann::json sessions = nlohmann::json::array();
    for (const SessionReport& session : lease.report().by_session()) {
      sessions.push_back({{"session", SessionName(lease, session)},
                          {"client", session.client()},
                          {"launches", session.launches()},
                          {"program", session.program()},
                          {"running_seconds", session.running_seconds()},
                          {"bytes_held", session.bytes_held()},
                          {"arrays", session.arrays()},
                          {"executables", session.executables()}});
    }
    leases.push_back({{"lease", lease.lease()},
                      {"owner", lease.owner()},
                      {"slices", LeaseSlices(lease)},
                      {"placed", lease.placed()},
                      {"waiting_for", lease.waiting_for()},
                      {"sessions", lease.report().sessions()},
                      {"programs_run", lease.report().programs_run()},
                      {"bytes_held", lease.report().bytes_held()},
                      {"arrays", lease.report().arrays()},
                      {"executables", lease.report().executables()},
                      {"by_session", sessions}});
  }
  for (const RoleRecord& role : record.roles) {
    roles.push_back({{"role", role.role}, {"pid", role.pid}, {"restarts", role.restarts}, {"log", role.log}});
  }
  const nlohmann::json json = {{"name", record.name},
                               {"devices", totals.devices},
                               {"hosts", totals.hosts},
                               {"sessions", totals.sessions},
                               {"programs_run", totals.programs_run},
                               {"arrays", totals.arrays},
                               {"executables", totals.executables},
                               {"bytes_held", totals.bytes_held},
                               {"expected_slices", status.expected_slices()},
                               {"slices", slices},
                               {"leases", leases},
                               {"roles", roles}};
  return json.dump(2) + "\n";
}

}  // namespace parkway::cli
