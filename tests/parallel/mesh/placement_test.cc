#include "shoal/parallel/mesh/placement.h"

#include <algorithm>
#include <set>

#include "support/error_text.h"
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shoal/runtime/base/error.h"

namespace shoal::parallel {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::vector<std::string> places(std::string_view placement, const MeshShape& shape) {
  std::vector<std::string> result;
  for (int rank = 0; rank < shape.size(); ++rank) {
    const MeshPlace p = Placement(placement).place_of(rank, shape);
    result.push_back(fmt::format("{}{}{}", p.rdp, p.pp, p.tp));
  }
  return result;
}

using test::error_text;

// SMP's documentation: 8 ranks with tp = pp = rdp = 2, as (rdp, pp, tp).
TEST(Placement, IsSmpsRankTable) {
  const MeshShape shape{2, 2, 2};
  EXPECT_THAT(places("DPT", shape),
              ElementsAre("000", "001", "010", "011", "100", "101", "110", "111"));
  EXPECT_THAT(places("PTD", shape),
              ElementsAre("000", "100", "001", "101", "010", "110", "011", "111"));
  EXPECT_EQ(places("cluster", shape), places("DPT", shape));
  EXPECT_EQ(places("spread", shape), places("TPD", shape));
  EXPECT_EQ(places("Spread", shape), places("tpd", shape));
}

// The same with only partitions = 2.
TEST(Placement, HasSmpsModelAndDataParallelGroups) {
  const MeshShape shape{4, 2, 1};
  const Placement spread("spread"), cluster("cluster");
  for (int rank = 0; rank < 4; ++rank) {
    EXPECT_THAT(spread.group(rank, kMp, shape), ElementsAre(rank, rank + 4));
    EXPECT_THAT(cluster.group(2 * rank, kMp, shape), ElementsAre(2 * rank, 2 * rank + 1));
  }
  EXPECT_THAT(cluster.group(0, kDp, shape), ElementsAre(0, 2, 4, 6));
  EXPECT_THAT(cluster.group(3, kDp, shape), ElementsAre(1, 3, 5, 7));
}

TEST(Placement, EveryOrderTilesTheRanksWithGroups) {
  std::string letters = "DPT";
  do {
    for (const MeshShape& shape : {MeshShape{1, 1, 1}, MeshShape{3, 2, 2}, MeshShape{2, 5, 1},
                                   MeshShape{1, 3, 4}, MeshShape{17, 1, 1}}) {
      const Placement placement(letters);
      for (int rank = 0; rank < shape.size(); ++rank)
        EXPECT_EQ(placement.rank_at(placement.place_of(rank, shape), shape), rank);
      for (const Axes axes : {kTp, kPp, kRdp, kMp, kDp, kPp | kRdp, kTp | kPp | kRdp}) {
        std::set<int> seen;
        std::vector<int> smallest;  // by group number
        for (int rank = 0; rank < shape.size(); ++rank) {
          const std::vector<int> group = placement.group(rank, axes, shape);
          EXPECT_EQ(static_cast<int>(group.size()), shape.size(axes));
          EXPECT_TRUE(std::binary_search(group.begin(), group.end(), rank));
          for (const int other : group) {
            EXPECT_EQ(placement.group(other, axes, shape), group);
            EXPECT_EQ(placement.group_index(other, axes, shape),
                      placement.group_index(rank, axes, shape));
          }
          if (seen.insert(group.front()).second) smallest.push_back(group.front());
          EXPECT_EQ(smallest[static_cast<std::size_t>(placement.group_index(rank, axes, shape))],
                    group.front());
        }
      }
    }
  } while (std::next_permutation(letters.begin(), letters.end()));
}

TEST(Placement, RefusesInvalidStrategies) {
  EXPECT_THAT(error_text([] { Placement("DPP"); }),
              HasSubstr("there is no placement_strategy \"DPP\""));
  EXPECT_THAT(error_text([] { Placement(""); }), HasSubstr("use cluster (DPT), spread (TPD)"));
}

TEST(MeshShape, LeavesTheRestToDataParallelism) {
  EXPECT_EQ(mesh_shape(8, 2, 2), (MeshShape{2, 2, 2}));
  EXPECT_EQ(mesh_shape(1, 1, 1), (MeshShape{1, 1, 1}));
  EXPECT_THAT(error_text([] { mesh_shape(6, 2, 2); }),
              AllOf(HasSubstr("6 ranks do not divide"), HasSubstr("start 4 or 8 ranks")));
  EXPECT_THAT(error_text([] { mesh_shape(2, 4, 1); }), HasSubstr("start 4 ranks"));
  EXPECT_THAT(error_text([] { mesh_shape(2, 65536, 65536); }), HasSubstr("start 4294967296 ranks"));
}

TEST(PlacementTable, ShowsThePositionOfEachRank) {
  EXPECT_EQ(placement_table({2, 1, 2}, Placement("cluster")),
            "mesh of 4 ranks: rdp 2 x pp 1 x tp 2, placement DPT\n"
            " rank  rdp   pp   tp  its model (mp) on ranks\n"
            "    0    0    0    0  0 1\n"
            "    1    0    0    1  0 1\n"
            "    2    1    0    0  2 3\n"
            "    3    1    0    1  2 3\n");
  EXPECT_THAT(placement_table({1000, 1, 1}, Placement("cluster")), HasSubstr("\n  ...\n"));
}

}  // namespace
}  // namespace shoal::parallel
