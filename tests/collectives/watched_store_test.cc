// Waits continue while ranks make progress, and end when they do not.
#include "shoal/collectives/watched_store.h"

#include <chrono>
#include <cstdlib>
#include <thread>

#include "support/ranks.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shoal/runtime/base/deadlines.h"
#include "shoal/runtime/base/error.h"

namespace shoal::collectives {
namespace {

constexpr double kPatience = 0.8;  // seconds

void pause(double seconds) {
  const auto until = Deadline::in_seconds(seconds);
  while (!until.passed()) std::this_thread::sleep_for(std::chrono::milliseconds(5));
}

TEST(WatchedStore, WaitsAsLongAsAnotherRankMakesProgress) {
  ::setenv("SHOAL_DEADLINE_S", "0.8", 1);
  double waited = 0;
  test::run_thread_ranks(2, [&](const World& world, Store& store) {
    transport::ControlLinks links(world.rank, 2, store, "links", Deadline::in_seconds(20));
    WatchedStore ranks(store, &links, {world.rank, 2, {}}, "test");
    if (world.rank == 0) {
      for (int round = 0; round < 60; ++round) {
        pause(0.05);
        ranks.progressed();
      }
      ranks.set("done", "yes");
    } else {
      const auto began = Clock::now();
      EXPECT_EQ(ranks.get("done", Deadline::in_seconds(kPatience)), "yes");
      waited = seconds_since(began);
    }
    links.leave();
  });
  ::unsetenv("SHOAL_DEADLINE_S");
  EXPECT_GT(waited, 2 * kPatience);
}

TEST(WatchedStore, EndsAWaitWithoutProgressAtTheDeadline) {
  test::run_thread_ranks(2, [&](const World& world, Store& store) {
    transport::ControlLinks links(world.rank, 2, store, "links", Deadline::in_seconds(20));
    WatchedStore ranks(store, &links, {world.rank, 2, {}}, "test");
    if (world.rank == 0) {
      ranks.progressed();  // only once
      store.get("over", Deadline::in_seconds(20));
    } else {
      const auto began = Clock::now();
      try {
        (void)ranks.get("done", Deadline::in_seconds(kPatience));
        ADD_FAILURE() << "the wait ended without an error, although the key does not exist";
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::timeout);
        EXPECT_THAT(error.what(), ::testing::HasSubstr("'done'"));
      }
      EXPECT_GE(seconds_since(began), kPatience);
      EXPECT_LT(seconds_since(began), 4 * kPatience);
      store.set("over", "");
    }
    links.leave();
  });
}

}  // namespace
}  // namespace shoal::collectives
