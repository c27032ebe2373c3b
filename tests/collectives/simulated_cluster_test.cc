// Jobs on a simulated cluster, with a fault that the seed chooses (support/simulation). A failing
// seed is printed. SHOAL_TEST_CLUSTER_SEED=N plays seed N alone and says how each rank ended.
#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <map>
#include <string>
#include <thread>

#include "support/simulation/seeds.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace shoal::simulation {
namespace {

constexpr std::size_t kMostShown = 10;

std::uint64_t number_of(const char* variable, std::uint64_t otherwise) {
  const char* text = std::getenv(variable);
  return text ? std::stoull(text) : otherwise;
}

int jobs() { return std::clamp(static_cast<int>(std::thread::hardware_concurrency()), 1, 8); }

TEST(SimulatedCluster, EndsEveryJobInTimeAndNamesTheCulprit) {
  if (const char* seed = std::getenv("SHOAL_TEST_CLUSTER_SEED")) {
    const Report report = play(plan_of(std::stoull(seed)));
    std::cout << describe(report) << "\n";
    EXPECT_EQ(report.verdict, "");
    return;
  }
  const bool full = std::getenv("SHOAL_TEST_FULL") != nullptr;
  const std::uint64_t first = number_of("SHOAL_TEST_CLUSTER_FIRST", 0);
  const std::uint64_t count = number_of("SHOAL_TEST_CLUSTER_SEEDS", full ? 100'000 : 400);
  std::size_t failed = 0;
  for (const SeedResult& result : play_seeds(first, count, jobs()))
    if (!result.failure.empty() && ++failed <= kMostShown)
      ADD_FAILURE() << result.failure << "\n  SHOAL_TEST_CLUSTER_SEED=" << result.seed
                    << " plays it again";
  EXPECT_EQ(failed, 0U) << "of " << count << " seeds";
}

// The batches of the two runs differ, and so do the addresses of everything in memory.
TEST(SimulatedCluster, PlaysASeedTheSameWayEachTime) {
  const auto once = play_seeds(0, 40, 2), again = play_seeds(20, 20, 1);
  ASSERT_EQ(once.size(), 40U);
  ASSERT_EQ(again.size(), 20U);
  for (std::size_t i = 0; i < again.size(); ++i) {
    EXPECT_EQ(again[i].hash, once[20 + i].hash) << again[i].seed;
    EXPECT_EQ(again[i].steps, once[20 + i].steps) << again[i].seed;
  }
}

TEST(SimulatedCluster, FindsTheRanksThatAnErrorNames) {
  EXPECT_THAT(named_ranks("missing: rank(s) 3, 12: receive from rank 7 (instruction 2)"),
              ::testing::ElementsAre(3, 12, 7));
  EXPECT_THAT(named_ranks("ranks 1, 2 on host node0 of rank"), ::testing::ElementsAre(1, 2));
}

}  // namespace
}  // namespace shoal::simulation
