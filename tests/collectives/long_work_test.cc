// Ranks that work at their own pace detect each other's ends, and wait while there is progress.
#include "shoal/collectives/long_work.h"

#include <array>
#include <csignal>
#include <thread>

#include "support/calls.h"
#include "support/ranks.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shoal/collectives/communicator_options.h"
#include "shoal/runtime/base/error.h"

namespace shoal::collectives {
namespace {

using shoal::test::sleep_seconds;
using shoal::test::with_deadline;
using test::ProcessRanks;
using ::testing::HasSubstr;

// Reports progress now and then for this long.
void work(LongWork& long_work, double seconds) {
  for (const auto until = Deadline::in_seconds(seconds); !until.passed(); sleep_seconds(0.05))
    (void)long_work.beat();
}

TEST(LongWork, IsAwaitedAsLongAsItMakesProgress) {
  constexpr double kDeadline = 0.8;
  test::run_thread_ranks(3, [&](const World& world, Store& store) {
    const auto communicator = make_communicator(world, store, with_deadline(kDeadline));
    LongWork long_work(*communicator);
    const auto began = Clock::now();
    if (world.rank == 1) work(long_work, 2.5 * kDeadline);
    EXPECT_EQ(long_work.finish(), 0);
    EXPECT_GE(seconds_since(began), 2.5 * kDeadline);
    EXPECT_EQ(long_work.finish(), 0) << "finishing twice is allowed";
  });
}

TEST(LongWork, WithoutProgressEndsAtTheDeadline) {
  const auto errors = test::thread_rank_errors(2, [&](const World& world, Store& store) {
    const auto communicator = make_communicator(world, store, with_deadline(0.8));
    LongWork long_work(*communicator);
    if (world.rank == 1) {
      (void)store.get("over", Deadline::in_seconds(20));
      return;
    }
    try {
      (void)long_work.finish();
    } catch (...) {
      store.set("over", "");
      throw;
    }
  });
  EXPECT_THAT(errors[0], HasSubstr("missing: rank 1"));
}

TEST(LongWork, PassesASignalOfOneRankToAll) {
  test::run_thread_ranks(3, [&](const World& world, Store& store) {
    const auto communicator = make_communicator(world, store, with_deadline(20));
    LongWork long_work(*communicator);
    std::atomic<int> signal{0};
    if (world.rank == 2) {  // this rank has no work
      signal = 15;
      EXPECT_EQ(long_work.finish(&signal), 15);
    } else {
      int heard = 0;
      const auto until = Deadline::in_seconds(20);
      while (heard == 0 && !until.passed()) {
        sleep_seconds(0.02);
        heard = long_work.beat(&signal);
      }
      EXPECT_EQ(heard, 15);
      EXPECT_EQ(long_work.beat(&signal), 15) << "the signal stays until the work is finished";
      EXPECT_EQ(long_work.finish(&signal), 15);
    }
    EXPECT_EQ(long_work.agree(), 0) << "a new phase starts without the signal";
    EXPECT_EQ(long_work.finish(), 0);
  });
}

TEST(LongWork, OfASingleRankReturnsItsSignal) {
  test::run_thread_ranks(1, [&](const World& world, Store& store) {
    const auto communicator = make_communicator(world, store, with_deadline(20));
    LongWork long_work(*communicator);
    std::atomic<int> signal{0};
    EXPECT_EQ(long_work.beat(&signal), 0);
    signal = 10;
    EXPECT_EQ(long_work.beat(&signal), 10);
    EXPECT_EQ(long_work.finish(), 0);
  });
}

// Both the working rank and the waiting rank name a rank that dies.
TEST(LongWork, EndsWhenARankDies) {
  ProcessRanks ranks(3, [](const World& world, Store& store) {
    const auto communicator = make_communicator(world, store, with_deadline(60));
    LongWork long_work(*communicator);
    work(long_work, 0.2);
    ProcessRanks::say_ready(store);
    if (world.rank == 0) (void)long_work.finish();
    work(long_work, 60);
  });
  ASSERT_TRUE(ranks.wait_until_ready(20, 3));
  const auto killed = Clock::now();
  ranks.send_signal(2, SIGKILL);
  const auto outcomes = ranks.wait(20);
  EXPECT_LT(seconds_since(killed), 5)
      << "a death is reported within a tenth of a second on an idle machine";
  EXPECT_THAT(outcomes[0].error, HasSubstr("rank 2 died"));
  EXPECT_THAT(outcomes[1].error, HasSubstr("rank 2 died"));
}

TEST(LongWork, EndsAtTheDeadlineWhenARankIsStopped) {
  ProcessRanks ranks(2, [](const World& world, Store& store) {
    const auto communicator = make_communicator(world, store, with_deadline(1));
    LongWork long_work(*communicator);
    work(long_work, 0.2);
    if (world.rank == 0) ProcessRanks::say_ready(store);
    work(long_work, 60);
  });
  ASSERT_TRUE(ranks.wait_until_ready(20, 1));
  ranks.send_signal(1, SIGSTOP);
  const auto outcomes = ranks.wait(3);  // the stopped rank does not end
  EXPECT_THAT(outcomes[0].error, HasSubstr("missing: rank 1"));
}

}  // namespace
}  // namespace shoal::collectives
