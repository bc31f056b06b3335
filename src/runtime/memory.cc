// Device memory of engines that have a limit: is there room, and who holds it?
#include <algorithm>
#include <map>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/limits.h"
#include "runtime/engines.h"

namespace parkway::runtime {
namespace {

std::string Size(int64_t bytes) {
  if (bytes < 10'000) return absl::StrCat(bytes, " bytes");
  const double kib = static_cast<double>(bytes) / 1024;
  return bytes < (10 << 20) ? absl::StrFormat("%.1f KiB", kib) : absl::StrFormat("%.1f MiB", kib / 1024);
}

}  // namespace

absl::Status Engines::CheckMemory(const Holder& holder, const Demand& demand) const {
  struct Wanted {
    int64_t bytes = 0, temporary = 0;
    int device = -1;  // the only one; -2: several
  };
  std::map<int, Wanted> wanted;  // by host
  auto at = [&](int device) -> Wanted& {
    Wanted& one = wanted[topology_.device(device).host];
    one.device = one.device == -1 || one.device == device ? device : -2;
    return one;
  };
  for (const BuffersRef& output : demand.outputs) {
    for (int device : output->devices()->ids()) at(device).bytes += output->shard_bytes();
  }
  for (int device : demand.devices) at(device).temporary += demand.temporary;
  for (const BuffersRef& input : demand.donated) {
    for (int device : input->devices()->ids()) {
      if (input->Charged(device)) at(device).bytes -= input->shard_bytes();
    }
  }
  for (const auto& [host, want] : wanted) {
    const int64_t limit = hosts_[host].hello.memory_bytes(), held = hosts_[host].bytes;
    const int64_t needed = want.bytes + want.temporary;
    if (limit == 0 || needed <= 0 || held + needed <= limit) continue;
    const std::string where = want.device >= 0 ? topology_.Describe(want.device)
                                               : absl::StrCat("the devices of ", topology_.DescribeHost(host));
    const std::string temporary =
        want.temporary > 0 ? absl::StrCat(" (", Size(want.temporary), " of it while it runs)") : "";
    return absl::ResourceExhaustedError(absl::StrCat("out of memory: ", demand.what, " needs ", Size(needed), temporary,
                                                     " on ", where, ", where ", Size(held), " of ", Size(limit),
                                                     " are in use. ", HoldersOn(host, holder)));
  }
  return absl::OkStatus();
}

// What the asking session holds there, by what made it; of others only how much they hold together.
std::string Engines::HoldersOn(int host, const Holder& asking) const {
  struct Held {
    int64_t bytes = 0;
    int arrays = 0;
  };
  std::map<std::string, Held> own;
  int64_t mine = 0;
  for (const Buffers* buffers = asking.first; buffers != nullptr; buffers = buffers->next()) {
    int64_t bytes = 0;
    for (int device : topology_.hosts()[host].devices) {
      if (buffers->devices()->Contains(device) && buffers->Charged(device)) bytes += buffers->shard_bytes();
    }
    if (bytes == 0) continue;
    Held& held = own[buffers->made_by() != nullptr ? *buffers->made_by() : "something else"];
    held.bytes += bytes;
    ++held.arrays;
    mine += bytes;
  }
  std::vector<std::pair<std::string, Held>> largest(own.begin(), own.end());
  std::stable_sort(largest.begin(), largest.end(),
                   [](const auto& a, const auto& b) { return a.second.bytes > b.second.bytes; });
  std::string text = absl::StrCat("This client holds ", Size(mine), " there");
  for (size_t i = 0; i < largest.size() && i < limits::kLargestHolders; ++i) {
    absl::StrAppend(&text, i == 0 ? ": " : ", ", Size(largest[i].second.bytes), " in ", largest[i].second.arrays,
                    largest[i].second.arrays == 1 ? " array of " : " arrays of ", largest[i].first);
  }
  return absl::StrCat(text, "; other clients hold ", Size(hosts_[host].bytes - mine),
                      ". Delete arrays that are no longer needed");
}

}  // namespace parkway::runtime
