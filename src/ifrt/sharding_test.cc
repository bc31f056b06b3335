#include "ifrt/sharding.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <thread>
#include <vector>

#include "base/limits.h"
#include "ifrt/intern.h"

namespace parkway::ifrt {
namespace {

using ::testing::HasSubstr;
using Kind = Sharding::Kind;
using Subgroup = Sharding::Subgroup;

DeviceListPtr Devices(int n, int first = 0) {
  std::vector<int32_t> ids(n);
  std::iota(ids.begin(), ids.end(), first);
  return *DeviceList::Make(ids);
}
Shape S(std::vector<int64_t> dims) { return *Shape::Make(dims); }

// "[0:2,0:3] [2:4,0:3]"
std::string Regions(const ShardingPtr& sharding, const Shape& shape) {
  std::string out;
  for (int i = 0; i < sharding->num_shards(); ++i) {
    absl::StatusOr<Region> region = sharding->ShardRegion(shape, i);
    out += (i > 0 ? " " : "") + (region.ok() ? region->ToString() : region.status().ToString());
  }
  return out;
}

ShardingPtr Iota(DeviceListPtr devices, std::vector<int64_t> grid, std::vector<int64_t> reshape,
                 std::vector<int32_t> perm, Sharding::Subgroups subgroups = {}) {
  return *Sharding::Tiled(devices, *TileAssignment::Iota(grid, reshape, perm), subgroups);
}

TEST(DeviceList, InternsAndFinds) {
  EXPECT_EQ(*DeviceList::Make({3, 1, 2}), *DeviceList::Make({3, 1, 2}));
  EXPECT_NE(*DeviceList::Make({3, 1, 2}), *DeviceList::Make({1, 2, 3}));
  DeviceListPtr list = *DeviceList::Make({3, 1, 2});
  EXPECT_EQ(list->Position(1), 1);
  EXPECT_EQ(list->Position(3), 0);
  EXPECT_EQ(list->Position(0), std::nullopt);
  EXPECT_TRUE(list->SameSet(**DeviceList::Make({1, 2, 3})));
  EXPECT_FALSE(list->SameSet(**DeviceList::Make({1, 2, 4})));
  DeviceListPtr run = Devices(4, 100);
  EXPECT_EQ(run->Position(103), 3);
  EXPECT_EQ(run->Position(104), std::nullopt);
  EXPECT_EQ(run->Position(99), std::nullopt);
  EXPECT_EQ(Devices(0)->Position(0), std::nullopt);
}

TEST(DeviceList, RefusesBadLists) {
  for (const std::vector<int32_t>& ids : std::vector<std::vector<int32_t>>{
           {-1}, {0, 0}, {1, 2, 1}, {INT32_MAX, INT32_MIN}, std::vector<int32_t>(limits::kMaxDevicesPerSharding + 1)}) {
    EXPECT_EQ(DeviceList::Make(ids).status().code(), absl::StatusCode::kInvalidArgument);
  }
  EXPECT_TRUE(DeviceList::Make({INT32_MAX}).ok());
}

TEST(InternTable, KeepsNothingAlive) {
  InternTable<int> table;
  for (int i = 0; i < 100000; ++i) {
    table.Get(std::to_string(i), [&] { return std::make_shared<const int>(i); });
  }
  EXPECT_LT(table.size(), 3000);
}

TEST(InternTable, ThreadsGetOneObject) {
  std::vector<ShardingPtr> got(8);
  std::vector<std::thread> threads;
  for (size_t i = 0; i < got.size(); ++i) {
    threads.emplace_back([&got, i] {
      for (int round = 0; round < 200; ++round) got[i] = *Sharding::Replicated(Devices(3 + round % 5));
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const ShardingPtr& sharding : got) EXPECT_EQ(sharding, got[0]);
}

TEST(TileAssignment, LowestTermsMakeEqualFormsEqual) {
  struct Case {
    std::vector<int64_t> reshape;
    std::vector<int32_t> perm;
    Dims want_reshape;
    std::vector<int32_t> want_perm;
  };
  for (const Case& c : std::vector<Case>{{{12}, {0}, {12}, {0}},
                                         {{3, 4}, {0, 1}, {12}, {0}},
                                         {{3, 4}, {1, 0}, {3, 4}, {1, 0}},
                                         {{1, 3, 1, 4}, {3, 0, 1, 2}, {3, 4}, {1, 0}},
                                         {{2, 3, 2}, {2, 0, 1}, {6, 2}, {1, 0}},
                                         {{2, 3, 2}, {1, 0, 2}, {2, 3, 2}, {1, 0, 2}},
                                         {{2, 3, 1, 2}, {1, 2, 3, 0}, {2, 6}, {1, 0}}}) {
    TileAssignment tiles = *TileAssignment::Iota({12}, c.reshape, c.perm);
    EXPECT_EQ(tiles.reshape(), c.want_reshape) << DimsToString(c.reshape);
    EXPECT_EQ(std::vector<int32_t>(tiles.perm().begin(), tiles.perm().end()), c.want_perm) << DimsToString(c.reshape);
  }
  TileAssignment one = *TileAssignment::Iota({1, 1}, {1, 1}, {1, 0});
  EXPECT_EQ(one.reshape(), Dims({1}));
}

TEST(TileAssignment, IotaEqualsItsOwnList) {
  for (const auto& [reshape, perm] : std::vector<std::pair<std::vector<int64_t>, std::vector<int32_t>>>{
           {{2, 3, 4}, {2, 0, 1}}, {{4, 6}, {1, 0}}, {{2, 2, 2, 3}, {3, 1, 0, 2}}, {{24}, {0}}}) {
    TileAssignment iota = *TileAssignment::Iota({4, 3, 2}, reshape, perm);
    std::vector<int64_t> positions;
    for (int tile = 0; tile < 24; ++tile) positions.push_back(iota.PositionOf(tile));
    TileAssignment listed = *TileAssignment::Listed({4, 3, 2}, positions);
    for (int i = 0; i < 24; ++i) {
      EXPECT_EQ(iota.TileOf(i), listed.TileOf(i));
      EXPECT_EQ(iota.PositionOf(i), listed.PositionOf(i));
    }
  }
}

TEST(TileAssignment, RefusesBadForms) {
  const int64_t big = int64_t{1} << 62;
  EXPECT_FALSE(TileAssignment::Iota({2, 3}, {7}, {0}).ok());
  EXPECT_FALSE(TileAssignment::Iota({6}, {2, 3}, {0}).ok());
  EXPECT_FALSE(TileAssignment::Iota({6}, {2, 3}, {0, 0}).ok());
  EXPECT_FALSE(TileAssignment::Iota({6}, {2, 3}, {0, 2}).ok());
  EXPECT_FALSE(TileAssignment::Iota({6}, {2, 3}, {-1, 0}).ok());
  EXPECT_FALSE(TileAssignment::Iota({0}).ok());
  EXPECT_FALSE(TileAssignment::Iota({-4, -4}).ok());
  EXPECT_FALSE(TileAssignment::Iota({big, big, 4}).ok());
  EXPECT_FALSE(TileAssignment::Iota(std::vector<int64_t>(1000, 1)).ok());
  EXPECT_FALSE(TileAssignment::Listed({4}, {0, 1, 2}).ok());
  EXPECT_FALSE(TileAssignment::Listed({4}, {0, 1, 2, 2}).ok());
  EXPECT_FALSE(TileAssignment::Listed({4}, {0, 1, 2, 4}).ok());
  EXPECT_FALSE(TileAssignment::Listed({4}, {0, 1, 2, -1}).ok());
  EXPECT_FALSE(TileAssignment::Listed({big}, {0}).ok());
}

TEST(Sharding, RegionsOfTiles) {
  EXPECT_EQ(Regions(*Sharding::Tiled(Devices(4), *TileAssignment::Iota({2, 2}), {}), S({4, 6})),
            "[0:2,0:3] [0:2,3:6] [2:4,0:3] [2:4,3:6]");
  EXPECT_EQ(Regions(Iota(Devices(4), {2, 2}, {2, 2}, {1, 0}), S({4, 6})), "[0:2,0:3] [2:4,0:3] [0:2,3:6] [2:4,3:6]");
  EXPECT_EQ(Regions(*Sharding::Tiled(Devices(4), *TileAssignment::Listed({4, 1}, {3, 1, 0, 2}), {}), S({8, 1})),
            "[4:6,0:1] [2:4,0:1] [6:8,0:1] [0:2,0:1]");
  // Partly replicated: the last dimension of the grid is none of the array.
  EXPECT_EQ(Regions(Iota(Devices(4), {2, 2}, {4}, {0}, {Subgroup::kReplicated}), S({6})), "[0:3] [0:3] [3:6] [3:6]");
  EXPECT_EQ(Regions(Iota(Devices(4), {2, 2}, {2, 2}, {1, 0}, {Subgroup::kReplicated}), S({6})),
            "[0:3] [3:6] [0:3] [3:6]");
}

TEST(Sharding, UnevenAndEmptyTails) {
  ShardingPtr four = *Sharding::Tiled(Devices(4), *TileAssignment::Iota({4}), {});
  EXPECT_EQ(Regions(four, S({10})), "[0:3] [3:6] [6:9] [9:10]");
  EXPECT_EQ(Regions(four, S({5})), "[0:2] [2:4] [4:5] [5:5]");
  EXPECT_EQ(Regions(four, S({2})), "[0:1] [1:2] [2:2] [2:2]");
  EXPECT_EQ(Regions(four, S({0})), "[0:0] [0:0] [0:0] [0:0]");
  EXPECT_EQ(*four->ShardShape(S({10})), S({3}));
  EXPECT_EQ(*four->ShardShape(S({10}), 3), S({1}));
  EXPECT_EQ(*four->ShardShape(S({2}), 3), S({0}));
}

TEST(Sharding, WholeArrayKinds) {
  for (const ShardingPtr& sharding :
       {*Sharding::SingleDevice(5), *Sharding::Replicated(Devices(3)), *Sharding::Maximal(Devices(3), 1),
        *Sharding::Unplaced(Kind::kManual, Devices(3)), *Sharding::Unplaced(Kind::kUnreduced, Devices(3))}) {
    EXPECT_EQ(*sharding->ShardShape(S({4, 5})), S({4, 5})) << sharding->ToString();
    EXPECT_EQ(sharding->ShardRegion(S({4, 5}), 0)->ToString(), "[0:4,0:5]") << sharding->ToString();
    EXPECT_EQ(sharding->ShardRegion(S({}), 0)->ToString(), "[]");
  }
  EXPECT_TRUE((*Sharding::SingleDevice(5))->IsFullyReplicated());
  EXPECT_TRUE((*Sharding::Replicated(Devices(3)))->IsFullyReplicated());
  EXPECT_FALSE((*Sharding::Maximal(Devices(3), 1))->IsFullyReplicated());
  EXPECT_FALSE((*Sharding::Unplaced(Kind::kManual, Devices(3)))->IsFullyReplicated());
}

TEST(Sharding, ConcreteAndOpaque) {
  ShardingPtr even = *Sharding::ConcreteEven(Devices(2), S({4}), S({2}), false);
  EXPECT_EQ(*even->ShardShape(S({4})), S({2}));
  EXPECT_FALSE(even->ShardShape(S({6})).ok());
  EXPECT_EQ(even->ShardRegion(S({4}), 0).status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE((*Sharding::ConcreteEven(Devices(2), S({4}), S({4}), true))->IsFullyReplicated());
  EXPECT_FALSE(Sharding::ConcreteEven(Devices(2), S({4}), S({2}), true).ok());
  ShardingPtr concrete = *Sharding::Concrete(Devices(2), S({4}), {S({1}), S({3})});
  EXPECT_EQ(*concrete->ShardShape(S({4}), 1), S({3}));
  EXPECT_FALSE(concrete->ShardShape(S({4})).ok());
  EXPECT_FALSE(Sharding::Concrete(Devices(2), S({4}), {S({4})}).ok());
  ShardingPtr opaque = *Sharding::Unplaced(Kind::kOpaque, Devices(2));
  EXPECT_FALSE(opaque->ShardShape(S({4})).ok());
}

TEST(Sharding, ConcreteFitsWhatItsShardsFit) {
  ShardingPtr halves = *Sharding::Tiled(Devices(4), *TileAssignment::Iota({2, 2}), {Subgroup::kReplicated});
  ShardingPtr even = *Sharding::ConcreteEven(Devices(4), S({4}), S({2}), false);
  EXPECT_TRUE(even->Fits(*halves, S({4})));
  EXPECT_FALSE(even->Equivalent(*halves, S({4})));
  EXPECT_FALSE(halves->Fits(*even, S({4})));
  EXPECT_FALSE(even->Fits(**Sharding::Replicated(Devices(4)), S({4})));
  EXPECT_FALSE(even->Fits(*Iota(Devices(4, 4), {2, 2}, {4}, {0}, {Subgroup::kReplicated}), S({4})));
  EXPECT_TRUE(
      (*Sharding::ConcreteEven(Devices(4), S({4}), S({4}), false))->Fits(**Sharding::Replicated(Devices(4)), S({4})));
  // Uneven: which device has the short one matters.
  ShardingPtr thirds = *Sharding::Tiled(Devices(3), *TileAssignment::Iota({3}), {});
  EXPECT_TRUE((*Sharding::Concrete(Devices(3), S({5}), {S({2}), S({2}), S({1})}))->Fits(*thirds, S({5})));
  EXPECT_FALSE((*Sharding::Concrete(Devices(3), S({5}), {S({1}), S({2}), S({2})}))->Fits(*thirds, S({5})));
}

TEST(Sharding, EmptyArraysFitWhereverTheirShardsAreTheSame) {
  ShardingPtr tiled = *Sharding::Tiled(Devices(2), *TileAssignment::Iota({2}), {});
  EXPECT_TRUE(tiled->Fits(**Sharding::Replicated(Devices(2)), S({0})));
  EXPECT_FALSE(tiled->Fits(**Sharding::Replicated(Devices(3)), S({0})));
  ShardingPtr rows = *Sharding::Tiled(Devices(2), *TileAssignment::Iota({2, 1}), {});
  EXPECT_FALSE(rows->Fits(**Sharding::Replicated(Devices(2)), S({4, 0})));
}

TEST(Sharding, EqualOnesAreOneObject) {
  EXPECT_EQ(*Sharding::Replicated(Devices(4)), *Sharding::Replicated(Devices(4)));
  EXPECT_NE(*Sharding::Replicated(Devices(4)), *Sharding::Replicated(Devices(4), "pinned_host"));
  EXPECT_NE(*Sharding::Replicated(Devices(4)), *Sharding::Replicated(Devices(4), ""));
  EXPECT_EQ(*Sharding::Replicated(Devices(1)), *Sharding::SingleDevice(0));
  EXPECT_EQ(*Sharding::Tiled(Devices(1), *TileAssignment::Iota({1, 1}), {}), *Sharding::SingleDevice(0));
  EXPECT_EQ(*Sharding::Maximal(Devices(1), 0), *Sharding::SingleDevice(0));
  EXPECT_EQ(Iota(Devices(4), {1, 4}, {4}, {0}, {Subgroup::kReplicated}), *Sharding::Replicated(Devices(4)));
  EXPECT_EQ(Iota(Devices(4), {1, 4}, {4}, {0}, {Subgroup::kManual}), *Sharding::Unplaced(Kind::kManual, Devices(4)));
  EXPECT_EQ(Iota(Devices(4), {4, 1}, {4}, {0}, {Subgroup::kManual}), Iota(Devices(4), {4}, {4}, {0}));
  EXPECT_EQ(Iota(Devices(4), {2, 2}, {2, 2}, {0, 1}), Iota(Devices(4), {2, 2}, {4}, {0}));
  EXPECT_NE(Iota(Devices(4), {2, 2}, {2, 2}, {1, 0}), Iota(Devices(4), {2, 2}, {4}, {0}));
  EXPECT_NE(Iota(Devices(4), {2, 2}, {4}, {0}), Iota(Devices(4), {2, 2}, {4}, {0}, {Subgroup::kReplicated}));
}

TEST(Sharding, EquivalentLooksThroughForms) {
  const Shape shape = S({8, 8});
  ShardingPtr iota = Iota(Devices(4), {2, 2}, {2, 2}, {1, 0});
  ShardingPtr listed = *Sharding::Tiled(Devices(4), *TileAssignment::Listed({2, 2}, {0, 2, 1, 3}), {}, "device");
  EXPECT_NE(iota, listed);
  EXPECT_TRUE(iota->Equivalent(*listed, shape));
  // The same regions on the same devices, devices in another order.
  ShardingPtr reordered = *Sharding::Tiled(*DeviceList::Make({0, 2, 1, 3}), *TileAssignment::Iota({2, 2}), {});
  EXPECT_TRUE(iota->Equivalent(*reordered, shape));
  EXPECT_TRUE(reordered->Equivalent(*iota, shape));
  EXPECT_FALSE(iota->Equivalent(*Sharding::Tiled(Devices(4), *TileAssignment::Iota({2, 2}), {}).value(), shape));
  EXPECT_FALSE(iota->Equivalent(**Sharding::Replicated(Devices(4)), shape));
  EXPECT_FALSE(iota->Equivalent(*Iota(Devices(4, 4), {2, 2}, {2, 2}, {1, 0}), shape));
  // Uneven: two grids, one layout.
  ShardingPtr a = *Sharding::Replicated(*DeviceList::Make({1, 0}));
  EXPECT_TRUE(a->Equivalent(**Sharding::Replicated(Devices(2), "pinned_host"), shape));
  // Where regions aren't known, only the same form is the same.
  ShardingPtr manual = *Sharding::Unplaced(Kind::kManual, Devices(2));
  EXPECT_TRUE(manual->Equivalent(**Sharding::Unplaced(Kind::kManual, Devices(2), "pinned_host"), shape));
  EXPECT_FALSE(manual->Equivalent(*a, shape));
  EXPECT_FALSE(manual->Equivalent(**Sharding::Unplaced(Kind::kUnreduced, Devices(2)), shape));
}

TEST(Sharding, WithOtherDevices) {
  ShardingPtr tiled = Iota(Devices(4), {2, 2}, {2, 2}, {1, 0});
  ShardingPtr moved = *tiled->With(Devices(4, 8), "pinned_host");
  EXPECT_EQ(Regions(moved, S({4, 4})), Regions(tiled, S({4, 4})));
  EXPECT_EQ(moved->memory_kind(), "pinned_host");
  EXPECT_EQ(*moved->With(Devices(4), std::nullopt), tiled);
  EXPECT_THAT(std::string(tiled->With(Devices(3), std::nullopt).status().message()), HasSubstr("4 shards"));
  EXPECT_EQ(moved->ShardOf(2), *Sharding::SingleDevice(10, "pinned_host"));
}

TEST(Sharding, RefusesBadOnes) {
  EXPECT_FALSE(Sharding::Replicated(Devices(0)).ok());
  EXPECT_FALSE(Sharding::Replicated(nullptr).ok());
  EXPECT_FALSE(Sharding::SingleDevice(-1).ok());
  EXPECT_FALSE(Sharding::Maximal(Devices(3), 3).ok());
  EXPECT_FALSE(Sharding::Tiled(Devices(3), *TileAssignment::Iota({4}), {}).ok());
  EXPECT_FALSE(Sharding::Tiled(Devices(4), *TileAssignment::Iota({4}), {Subgroup::kManual, Subgroup::kManual}).ok());
  EXPECT_FALSE(Sharding::Unplaced(Kind::kTiled, Devices(4)).ok());
  ShardingPtr tiled = Iota(Devices(4), {2, 2}, {4}, {0});
  EXPECT_FALSE(tiled->ShardShape(S({4})).ok());
  EXPECT_FALSE(tiled->ShardRegion(S({4, 4, 4}), 0).ok());
}

TEST(Sharding, ManyDevicesCostNoTable) {
  const int n = limits::kMaxDevicesPerSharding;
  ShardingPtr sharding = Iota(Devices(n), {512, 256}, {256, 512}, {1, 0});
  EXPECT_EQ(sharding->ShardRegion(S({1024, 1024}), n - 1)->ToString(), "[1022:1024,1020:1024]");
}

}  // namespace
}  // namespace parkway::ifrt
