// A Work completes whether its rank waits for it, polls it or drops it; otherwise it ends with an
// error.
#include <thread>

#include "support/calls.h"
#include "support/ranks.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shoal/collectives/communicator.h"
#include "shoal/runtime/base/error.h"

namespace shoal::collectives {
namespace {

using shoal::test::sleep_seconds;
using shoal::test::with_deadline;
using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(Work, CompletesWithoutAWaitingThread) {
  test::run_thread_ranks(2, [](const World& world, Store& store) {
    const auto communicator = make_communicator(world, store, with_deadline(20));
    std::vector<float> a(1 << 18, 1.0f), b(1 << 18, 2.0f), c(4, 3.0f);
    const auto start = [&](std::vector<float>& x) {
      return communicator->all_reduce(x.data(), x.data(), static_cast<std::int64_t>(x.size()),
                                      DType::f32, ReduceOp::sum);
    };
    auto first = start(a);
    auto second = start(b);
    start(c).reset();  // dropped, but still executed
    const auto began = Clock::now();
    while (communicator->statistics().operations < 3 && seconds_since(began) < 10)
      sleep_seconds(0.001);
    EXPECT_EQ(communicator->statistics().by_progress_thread, 3);
    EXPECT_TRUE(second->test());
    EXPECT_TRUE(first->test());
    EXPECT_EQ(a.back(), 2.0f);
    EXPECT_EQ(b.back(), 4.0f);
    EXPECT_EQ(c.back(), 6.0f);
    communicator->barrier()->wait();
  });
}

TEST(Work, MayBePolledAndWaitedForInAnyOrder) {
  test::run_thread_ranks(3, [](const World& world, Store& store) {
    const auto communicator = make_communicator(world, store, with_deadline(20));
    std::vector<std::vector<double>> buffers(12, std::vector<double>(5000, world.rank));
    std::vector<std::unique_ptr<Work>> works;
    for (auto& buffer : buffers)
      works.push_back(
          communicator->all_reduce(buffer.data(), buffer.data(), 5000, DType::f64, ReduceOp::sum));
    while (!works[3]->test()) std::this_thread::yield();
    for (std::size_t i = works.size(); i-- > 0;) works[i]->wait();
    for (const auto& buffer : buffers) EXPECT_EQ(buffer.back(), 3.0);
  });
}

TEST(Work, ThatIsOnlyTestedHasTheDeadlineToo) {
  const auto errors = test::thread_rank_errors(2, [](const World& world, Store& store) {
    const auto communicator = make_communicator(world, store, with_deadline(1));
    communicator->barrier()->wait();
    if (world.rank == 1) {
      store.get("given up", Deadline::in_seconds(20));
      return;
    }
    const auto start = Clock::now();
    const auto work = communicator->barrier();
    try {
      while (!work->test() && seconds_since(start) < 10) sleep_seconds(0.001);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::timeout);
      store.set("given up", "");
      throw;
    }
    store.set("given up", "");
  });
  EXPECT_THAT(errors[0], AllOf(HasSubstr("barrier (#2) did not finish within"),
                               HasSubstr("rank 1 (it last called barrier (#1))")));
}

TEST(Work, OutlivesItsCommunicatorWithAnError) {
  test::run_thread_ranks(2, [](const World& world, Store& store) {
    auto communicator = make_communicator(world, store, with_deadline(20));
    communicator->barrier()->wait();
    if (world.rank == 1) return;
    std::vector<float> values(100);
    const auto work =
        communicator->all_reduce(values.data(), values.data(), 100, DType::f32, ReduceOp::sum);
    communicator.reset();
    EXPECT_THROW(work->wait(), Error);
  });
}

}  // namespace
}  // namespace shoal::collectives
