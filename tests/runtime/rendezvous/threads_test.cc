// How ranks share the cores of their host.
#include "shoal/runtime/rendezvous/threads.h"

#include <cstdlib>
#include <thread>
#include <vector>

#include <gtest/gtest.h>
#include <sched.h>

#include "shoal/runtime/base/parallel_for.h"

namespace shoal {
namespace {

struct Rank {
  std::string host;
  int local_size = 1, core = -1;  // bound to this core of those available; -1: unbound
};

int nth_core(int n) {
  cpu_set_t mask;
  ::sched_getaffinity(0, sizeof mask, &mask);
  for (int core = 0; core < CPU_SETSIZE; ++core)
    if (CPU_ISSET(core, &mask) && n-- == 0) return core;
  return -1;
}

// Each rank a thread with an affinity of its own.
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
      found[r] = threads_of_rank(world, *store, Deadline::in_seconds(20));
    });
  for (std::thread& thread : threads) thread.join();
  return found;
}

TEST(ThreadsOfRank, UnboundRanksShareTheCoresOfTheirHost) {
  const int cores = available_cores(), half = std::max(1, cores / 2);
  EXPECT_EQ(shares({{"a"}}), std::vector<int>{cores});
  EXPECT_EQ(shares({{"a", 2}, {"a", 2}}), (std::vector<int>{half, half}));
  // A rank alone on its host takes part too, although it shares with nobody.
  EXPECT_EQ(shares({{"a", 2}, {"b", 1}, {"a", 2}}), (std::vector<int>{half, cores, half}));
}

TEST(ThreadsOfRank, BoundRanksKeepTheirOwn) {
  if (available_cores() < 2) GTEST_SKIP() << "one core";
  EXPECT_EQ(shares({{"a", 2, 0}, {"a", 2, 1}}), (std::vector<int>{1, 1}));
  // Where bound ranks leave cores, only who may use them does.
  EXPECT_EQ(shares({{"a", 2, 0}, {"a", 2, -1}})[0], 1);
  EXPECT_EQ(shares({{"a", 2, 0}, {"a", 2, -1}})[1], available_cores() - 1);
}

TEST(ThreadsOfRank, AWishOfOneRankHoldsUpNobody) {
  ::setenv("SHOAL_THREADS", "3", 1);
  EXPECT_EQ(shares({{"a"}}), std::vector<int>{3});
  EXPECT_EQ(shares({{"a", 2}, {"a", 2}}), (std::vector<int>{3, 3}));
  ::setenv("SHOAL_THREADS", "5000", 1);
  EXPECT_ANY_THROW((void)threads_of_rank(World{}, *make_hash_store(), Deadline::in_seconds(1)));
  ::unsetenv("SHOAL_THREADS");
}

}  // namespace
}  // namespace shoal
