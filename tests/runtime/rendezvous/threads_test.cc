// How ranks share the cores of their host.
#include "shoal/runtime/rendezvous/threads.h"

#include <algorithm>
#include <cstdlib>
#include <thread>
#include <vector>

#include "support/group_tree.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>

#include "shoal/runtime/base/error.h"
#include "shoal/runtime/base/parallel_for.h"

namespace shoal {
namespace {

struct Rank {
  std::string host;
  int local_size = 1, core = -1;  // the available core it is bound to; -1: unbound
  std::vector<CpuQuota> quotas = {};
};

int nth_core(int n) {
  cpu_set_t mask;
  ::sched_getaffinity(0, sizeof mask, &mask);
  for (int core = 0; core < CPU_SETSIZE; ++core)
    if (CPU_ISSET(core, &mask) && n-- == 0) return core;
  return -1;
}

// Runs each rank as a thread with its own affinity.
std::vector<int> shares(const std::vector<Rank>& ranks) {
  const auto store = make_hash_store();
  std::vector<int> found(ranks.size());
  std::vector<std::thread> threads;
  for (std::size_t r = 0; r < ranks.size(); ++r)
    threads.emplace_back([&, r] {
      if (ranks[r].core >= 0) {
        cpu_set_t mask;
        CPU_ZERO(&mask);
        CPU_SET(static_cast<std::size_t>(nth_core(ranks[r].core)), &mask);
        ::sched_setaffinity(0, sizeof mask, &mask);
      }
      World world;
      world.rank = static_cast<int>(r);
      world.size = static_cast<int>(ranks.size());
      world.local_size = ranks[r].local_size;
      world.host = ranks[r].host;
      found[r] = threads_of_rank(world, *store, Deadline::in_seconds(20), ranks[r].quotas);
    });
  for (std::thread& thread : threads) thread.join();
  return found;
}

TEST(ThreadsOfRank, UnboundRanksShareTheCoresOfTheirHost) {
  const int cores = affinity_cores(), half = std::max(1, cores / 2);
  EXPECT_EQ(shares({{"a"}}), std::vector<int>{cores});
  EXPECT_EQ(shares({{"a", 2}, {"a", 2}}), (std::vector<int>{half, half}));
  // A rank alone on its host takes part as well, although it shares with no other rank.
  EXPECT_EQ(shares({{"a", 2}, {"b", 1}, {"a", 2}}), (std::vector<int>{half, cores, half}));
}

TEST(ThreadsOfRank, BoundRanksKeepTheirOwn) {
  if (affinity_cores() < 2) GTEST_SKIP() << "one core";
  EXPECT_EQ(shares({{"a", 2, 0}, {"a", 2, 1}}), (std::vector<int>{1, 1}));
  // An unbound rank shares the cores that bound ranks leave.
  EXPECT_EQ(shares({{"a", 2, 0}, {"a", 2, -1}})[0], 1);
  EXPECT_EQ(shares({{"a", 2, 0}, {"a", 2, -1}})[1], affinity_cores() - 1);
}

TEST(ThreadsOfRank, ASettingOfOneRankDelaysNoOther) {
  ::setenv("SHOAL_THREADS", "3", 1);
  EXPECT_EQ(shares({{"a"}}), std::vector<int>{3});
  EXPECT_EQ(shares({{"a", 2}, {"a", 2}}), (std::vector<int>{3, 3}));
  ::setenv("SHOAL_THREADS", "5000", 1);
  EXPECT_ANY_THROW((void)threads_of_rank(World{}, *make_hash_store(), Deadline::in_seconds(1)));
  ::unsetenv("SHOAL_THREADS");
}

// A quota of this many cores in the group of that name.
CpuQuota quota(double cores, const std::string& group) {
  return {cores, group + "/cpu.max", group};
}

TEST(ThreadsOfRank, RanksShareTheQuotaOfTheirGroup) {
  if (affinity_cores() < 2) GTEST_SKIP() << "one core";
  const auto whole = quota(1, "1:1");
  EXPECT_EQ(shares({{"a", 1, -1, {whole}}}), std::vector<int>{1});
  EXPECT_EQ(shares({{"a", 1, -1, {quota(0.5, "1:1")}}}), std::vector<int>{1});
  EXPECT_EQ(shares({{"a", 1, -1, {quota(1e6, "1:1")}}}), std::vector<int>{affinity_cores()});
}

TEST(ThreadsOfRank, TheSmallerOfBothSharesCounts) {
  struct Case {
    std::string what;
    std::vector<std::vector<CpuQuota>> quotas;  // of two ranks of one host, and one rank of another
    std::vector<double> shares;                 // of the quotas only
  };
  for (const auto& [what, quotas, expected] : std::vector<Case>{
           {"one group", {{quota(2.7, "1:1")}, {quota(2.7, "1:1")}, {}}, {1.35, 1.35, 1e6}},
           {"a group each", {{quota(2.7, "1:1")}, {quota(4, "1:2")}, {}}, {2.7, 4, 1e6}},
           {"the same number on another host",
            {{quota(2, "1:1")}, {}, {quota(2, "1:1")}},
            {2, 1e6, 2}},
           {"a group each within one",
            {{quota(3, "1:1"), quota(4, "1:9")}, {quota(1, "1:2"), quota(4, "1:9")}, {}},
            {2, 1, 1e6}}}) {
    const std::vector<int> found =
        shares({{"a", 2, -1, quotas[0]}, {"a", 2, -1, quotas[1]}, {"b", 1, -1, quotas[2]}});
    const double cores = affinity_cores();
    for (std::size_t r = 0; r < 3; ++r)
      EXPECT_EQ(found[r],
                std::max(1, static_cast<int>(std::min(expected[r], r < 2 ? cores / 2 : cores))))
          << what << " of rank " << r;
  }
}

// Reads quotas as a container's ranks do.
TEST(ThreadsOfRank, QuotasComeFromTheGroups) {
  const testing::GroupTree tree("0::/", testing::GroupTree::version2());
  tree.max("", "100000 100000");
  const auto quotas = cpu_quotas(tree.root());
  EXPECT_EQ(shares({{"a", 1, -1, quotas}}), std::vector<int>{1});
  EXPECT_EQ(shares({{"a", 2, -1, quotas}, {"a", 2, -1, quotas}}), (std::vector<int>{1, 1}));
}

TEST(ThreadsOfRank, AMalformedAnswerNamesItsRank) {
  const std::string mask(CPU_SETSIZE, '1');
  for (const std::string& answer :
       {std::string(), std::string("a"), std::string("a|"), std::string("a|11|"), "a|" + mask,
        "a|" + mask + "1|", "a|" + mask.substr(1) + "x|", "a|" + mask + "|1:1"}) {
    const auto store = make_hash_store();
    World world;
    world.size = 2;
    world.local_size = 2;
    world.host = "a";
    std::thread peer(
        [&] { exchange(*store, "__shoal/affinity", 1, 2, answer, Deadline::in_seconds(20)); });
    try {
      threads_of_rank(world, *store, Deadline::in_seconds(20), {});
      ADD_FAILURE() << answer;
    } catch (const Error& problem) {
      EXPECT_EQ(problem.code(), ErrorCode::corrupt_data);
      EXPECT_EQ(problem.peer(), 1);
      EXPECT_THAT(problem.what(), ::testing::HasSubstr("rank 1 sent"));
    }
    peer.join();
  }
}

}  // namespace
}  // namespace shoal
