// How long ranks that share cores may poll before they sleep.
#include "shoal/collectives/transport/doorbell.h"

#include <array>
#include <memory>
#include <vector>

#include <gtest/gtest.h>

namespace shoal::collectives {
namespace {

struct Rank {
  std::uint64_t cores;  // bit c: core c
  double quota = 0;
  std::uint64_t group = 0;
};

int cores_of_ranks(const std::vector<Rank>& ranks) {
  std::vector<std::unique_ptr<transport::RankPage>> pages;
  std::vector<const transport::RankPage*> seen;
  for (const Rank& rank : ranks) {
    pages.push_back(std::make_unique<transport::RankPage>());
    pages.back()->cores[0] = rank.cores;
    pages.back()->quota_cores = rank.quota;
    pages.back()->quota_group = rank.group;
    seen.push_back(pages.back().get());
  }
  return transport::cores_of(seen);
}

TEST(Doorbell, RanksHaveTheirCommonCoresWithinTheirQuotas) {
  EXPECT_EQ(cores_of_ranks({{0b0011}, {0b1100}}), 4);
  EXPECT_EQ(cores_of_ranks({{0b1111}, {0b1111}}), 4);
  EXPECT_EQ(cores_of_ranks({{0b1111, 1.5, 7}, {0b1111, 1.5, 7}}), 1)
      << "both ranks share one quota";
  EXPECT_EQ(cores_of_ranks({{0b1111, 1.5, 7}, {0b1111, 1.5, 8}}), 3)
      << "each rank has its own quota";
  EXPECT_EQ(cores_of_ranks({{0b1111, 0.5, 7}, {0b1111}}), 4) << "one rank has no quota";
  EXPECT_EQ(cores_of_ranks({{0b1111, 0.5, 7}}), 1);
  EXPECT_EQ(cores_of_ranks({{0b0001, 8, 7}}), 1);
}

TEST(Doorbell, RanksThatOutnumberTheirCoresDoNotSpin) {
  EXPECT_GT(transport::suitable_spins(2, cores_of_ranks({{0b11, 2, 7}, {0b11, 2, 7}})), 0U);
  EXPECT_EQ(transport::suitable_spins(2, cores_of_ranks({{0b11, 1, 7}, {0b11, 1, 7}})), 0U);
  transport::RankPage page;
  transport::publish_cores(page);
  EXPECT_GE(transport::cores_of(std::array<const transport::RankPage*, 1>{&page}), 1);
}

}  // namespace
}  // namespace shoal::collectives
