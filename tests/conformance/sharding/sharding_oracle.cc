// What Parkway makes of shardings, for comparison with jaxlib. Each line of standard input is a case:
//   {"op_sharding": an xla.OpSharding in protobuf's JSON, perhaps a tuple, "devices": n, "shapes": [[8, 4], ...]}
// with a shape for each leaf of the tuple. The line of standard output for it is
//   {"wire": "0a..", "leaves": [{"regions": [[[start, stop], ...], ...], "grid": [..], "positions": [..]}, ...]}
// with the OpSharding's bytes in hex, and for each leaf the region of each device and, where it is tiled, the grid with
// the position of each tile; or {"error": "..."}.
#include <google/protobuf/util/json_util.h>

#include <iostream>
#include <nlohmann/json.hpp>
#include <numeric>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "base/status.h"
#include "ifrt/named_sharding_wire.h"
#include "ifrt/sharding_wire.h"

namespace parkway::ifrt {
namespace {

using nlohmann::json;

absl::StatusOr<json> Leaf(const xla::OpSharding& op, const DeviceListPtr& devices, const std::vector<int64_t>& dims) {
  PARKWAY_ASSIGN_OR_RETURN(ShardingPtr sharding, DecodeOpSharding(op, devices));
  PARKWAY_ASSIGN_OR_RETURN(Shape shape, Shape::Make(dims));
  json regions = json::array();
  for (int i = 0; i < sharding->num_shards(); ++i) {
    PARKWAY_ASSIGN_OR_RETURN(Region region, sharding->ShardRegion(shape, i));
    json box = json::array();
    for (size_t d = 0; d < region.start.size(); ++d) {
      box.push_back({region.start[d], region.start[d] + region.size[d]});
    }
    regions.push_back(box);
  }
  json out = {{"regions", regions}};
  if (sharding->kind() == Sharding::Kind::kTiled) {
    const TileAssignment& tiles = sharding->tiles();
    out["grid"] = std::vector<int64_t>(tiles.grid().begin(), tiles.grid().end());
    for (int tile = 0; tile < tiles.num_tiles(); ++tile) out["positions"].push_back(tiles.PositionOf(tile));
  }
  return out;
}

absl::StatusOr<json> Answer(const json& request) {
  xla::OpSharding op;
  const auto parsed = google::protobuf::util::JsonStringToMessage(request["op_sharding"].dump(), &op);
  if (!parsed.ok()) return absl::InvalidArgumentError(parsed.ToString());
  std::vector<int32_t> ids(request["devices"].get<int>());
  std::iota(ids.begin(), ids.end(), 0);
  PARKWAY_ASSIGN_OR_RETURN(DeviceListPtr devices, DeviceList::Make(ids));
  const auto shapes = request["shapes"].get<std::vector<std::vector<int64_t>>>();
  PARKWAY_ASSIGN_OR_RETURN(std::vector<xla::OpSharding> leaves, FlattenTuple(op, static_cast<int>(shapes.size())));
  json out = {{"wire", absl::BytesToHexString(op.SerializeAsString())}, {"leaves", json::array()}};
  for (size_t i = 0; i < leaves.size(); ++i) {
    PARKWAY_ASSIGN_OR_RETURN(json leaf, Leaf(leaves[i], devices, shapes[i]));
    out["leaves"].push_back(leaf);
  }
  return out;
}

}  // namespace
}  // namespace parkway::ifrt

int main() {
  std::string line;
  while (std::getline(std::cin, line)) {
    absl::StatusOr<nlohmann::json> answer = parkway::ifrt::Answer(nlohmann::json::parse(line));
    if (!answer.ok()) answer = nlohmann::json{{"error", answer.status().ToString()}};
    std::cout << answer->dump() << "\n";
  }
  return 0;
}
