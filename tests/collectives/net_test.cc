// The engine over an Endpoint, with ranks as threads over the loopback. Messages arrive in order,
// or shuffled, delayed and split into pieces.
#include <atomic>
#include <chrono>
#include <fstream>
#include <mutex>
#include <random>
#include <thread>

#include "loopback_ranks.h"
#include "predictable.h"
#include "support/calls.h"
#include "support/ranks.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "shoal/collectives/backend/net/patience.h"
#include "shoal/runtime/base/error.h"

namespace shoal::collectives {
namespace {

using shoal::test::sleep_seconds;
using shoal::test::sum;
using shoal::test::with_deadline;
using test::LoopbackRanks;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// (ranks, faults)
class NetResults : public ::testing::TestWithParam<std::tuple<int, bool>> {};

TEST_P(NetResults, AreExact) {
  const auto& [size, faults] = GetParam();
  const LoopbackRanks loopback(size, 1024);
  const transport::FaultOptions shuffled{static_cast<std::uint64_t>(size), 0.3, 200, 4};
  std::mutex mutex;
  std::vector<std::string> wrong;
  shoal::test::run_thread_ranks(size, [&](const World& world, Store& store) {
    const auto communicator =
        loopback.communicator(world, store, with_deadline(60), faults ? &shuffled : nullptr);
    const std::vector<std::int64_t> counts =
        faults ? std::vector<std::int64_t>{3, 2055} : std::vector<std::int64_t>{0, 1, 129, 2055};
    const auto own = test::check_everything(*communicator, counts);
    const std::lock_guard lock(mutex);
    wrong.insert(wrong.end(), own.begin(), own.end());
  });
  EXPECT_THAT(wrong, IsEmpty());
}

INSTANTIATE_TEST_SUITE_P(InOrder, NetResults,
                         ::testing::Combine(::testing::Range(2, 10), ::testing::Values(false)));
INSTANTIATE_TEST_SUITE_P(Shuffled, NetResults,
                         ::testing::Combine(::testing::Values(2, 3, 5), ::testing::Values(true)));

// True if patience is spent exactly at the last of the yields that every wait makes.
bool spent_at_last(net::Patience& patience, Clock::time_point now) {
  for (int look = 0; look < net::Patience::kLateLooks; ++look)
    if (patience.spent(now)) return false;
  return patience.spent(now);
}

TEST(Patience, PollsLessWhenWaitsAreLongAndMoreWhenTheyAreShort) {
  using std::chrono::microseconds;
  const Clock::time_point start{std::chrono::hours(1)};
  net::Patience patience(microseconds(160));
  for (int us = 0; us < 160; us += 10) EXPECT_FALSE(patience.spent(start + microseconds(us)));
  EXPECT_TRUE(spent_at_last(patience, start + microseconds(160)));
  patience.moved(start + microseconds(5000));
  for (int wait = 0; wait < 20; ++wait) {
    EXPECT_FALSE(patience.spent(start));
    patience.moved(start + microseconds(5000));
  }
  EXPECT_EQ(patience.look(), microseconds(5));
  // This wait is longer than the current polling time and shorter than the maximum, so polling
  // longer would have paid.
  EXPECT_FALSE(patience.spent(start));
  EXPECT_TRUE(spent_at_last(patience, start + microseconds(5)));
  patience.moved(start + microseconds(150));
  EXPECT_EQ(patience.look(), microseconds(10));
  patience.moved(start + microseconds(9000));  // no thread had waited
  EXPECT_EQ(patience.look(), microseconds(10));
}

TEST(Patience, SleepsForAWhileIfOtherThreadsNeedTheCore) {
  using std::chrono::microseconds;
  const Clock::time_point start{std::chrono::hours(1)};
  net::Patience patience(microseconds(160));
  for (int i = 0; i < 4; ++i) EXPECT_FALSE(patience.spent(start + i * microseconds(25)));
  EXPECT_TRUE(spent_at_last(patience, start + microseconds(100)));  // four yields took long
  patience.moved(start + microseconds(110));
  EXPECT_TRUE(spent_at_last(patience, start + microseconds(1000)));
  EXPECT_TRUE(patience.spent(start + microseconds(1001)));  // no yields between sleeps
  patience.moved(start + microseconds(1100));
  EXPECT_FALSE(patience.spent(start + microseconds(30000)));
}

// Another waiting rank returns the core at once. A computing thread does not, and each yield would
// cost another time slice.
TEST(Patience, SleepsAtOnceIfAYieldTookATimeSlice) {
  using std::chrono::microseconds;
  const Clock::time_point start{std::chrono::hours(1)};
  net::Patience patience(microseconds(160));
  EXPECT_FALSE(patience.spent(start));
  EXPECT_FALSE(patience.spent(start + microseconds(200)));
  EXPECT_FALSE(patience.spent(start + microseconds(300)));
  EXPECT_TRUE(patience.spent(start + microseconds(3300)));
  EXPECT_TRUE(patience.spent(start + microseconds(4300)));  // after an equally long sleep
  patience.moved(start + microseconds(4400));
  EXPECT_FALSE(patience.spent(start + microseconds(4500)));  // polling still comes first
  EXPECT_TRUE(patience.spent(start + microseconds(4700)));
  patience.moved(start + microseconds(4800));
  EXPECT_FALSE(patience.spent(start + microseconds(24000)));  // and after some time this state ends
  EXPECT_TRUE(spent_at_last(patience, start + microseconds(24200)));
}

TEST(Patience, SurvivesAFewSlowYields) {
  using std::chrono::microseconds;
  Clock::time_point now{std::chrono::hours(1)};
  net::Patience patience(microseconds(160));
  for (int wait = 0; wait < 40; ++wait) {  // one slow yield of 16: an interrupt, the hypervisor
    for (int look = 0; look < 16; ++look) {
      EXPECT_FALSE(patience.spent(now)) << "wait " << wait << ", look " << look;
      now += microseconds(look == 3 ? 30 : 1);
    }
    patience.moved(now);
  }
}

TEST(Net, AWorkThatIsOnlyTestedHasTheDeadlineToo) {
  const LoopbackRanks loopback(2);
  const auto errors = shoal::test::thread_rank_errors(2, [&](const World& world, Store& store) {
    const auto c = loopback.communicator(world, store, with_deadline(1));
    std::vector<float> values(10, 1.0f);
    sum(*c, values);
    if (world.rank == 0) {
      const auto start = Clock::now();
      const auto work = c->recv(values.data(), 10, DType::f32, 1);
      try {
        while (!work->test() && seconds_since(start) < 10) sleep_seconds(0.001);
      } catch (const Error&) {
        store.set("given up", "");
        throw;
      }
    }
    store.get("given up", Deadline::in_seconds(20));
  });
  EXPECT_THAT(errors[0],
              AllOf(HasSubstr("recv of 10 f32 from rank 1"), HasSubstr("did not finish within")));
}

// Each group has a waiting thread, and both threads drive one engine.
TEST(Net, TwoGroupsOfOneEngineMayBeWaitedForAtOnce) {
  const LoopbackRanks loopback(2);
  shoal::test::run_thread_ranks(2, [&](const World& world, Store& store) {
    const auto c = loopback.communicator(world, store, with_deadline(20));
    const std::vector<std::shared_ptr<Communicator>> groups{c->split(0, world.rank),
                                                            c->split(0, world.rank)};
    const auto start = Clock::now();
    std::atomic<int> right{0};
    std::vector<std::thread> threads;
    for (const auto& group : groups)
      threads.emplace_back([&right, group] {
        try {
          for (int i = 0; i < 1000; ++i) {
            std::vector<float> values(10, 1.0f);
            sum(*group, values);
            right += values[9] == 2.0f;
          }
        } catch (const Error& error) {
          ADD_FAILURE() << error.what();
        }
      });
    for (auto& thread : threads) thread.join();
    EXPECT_EQ(right, 2000);
    EXPECT_LT(seconds_since(start), 20);
  });
}

TEST(Net, ResultsAreBitIdenticalOnAllRanksAndInAllRuns) {
  constexpr std::int64_t kCount = 30001;
  std::vector<std::vector<float>> results;
  std::mutex mutex;
  for (std::uint64_t run = 0; run < 3; ++run) {
    const LoopbackRanks loopback(5);
    const transport::FaultOptions shuffled{run, 0.5, 300, 3};
    shoal::test::run_thread_ranks(5, [&](const World& world, Store& store) {
      const auto communicator = loopback.communicator(world, store, with_deadline(30), &shuffled);
      std::mt19937 random(static_cast<unsigned>(world.rank));
      std::normal_distribution<float> normal;
      std::vector<float> values(kCount);
      for (float& value : values) value = normal(random);
      sum(*communicator, values);
      const std::lock_guard lock(mutex);
      results.push_back(values);
    });
  }
  for (const auto& result : results)
    ASSERT_EQ(std::memcmp(result.data(), results[0].data(), kCount * sizeof(float)), 0);
}

TEST(Net, ManyOperationsOfManySizesAreInFlightAtOnce) {
  const LoopbackRanks loopback(4, 512);
  const transport::FaultOptions shuffled{7, 0.4, 300, 3};
  shoal::test::run_thread_ranks(4, [&](const World& world, Store& store) {
    const auto c = loopback.communicator(world, store, with_deadline(60), &shuffled);
    std::vector<std::vector<std::int32_t>> buffers;
    for (std::size_t i = 0; i < 200; ++i) buffers.emplace_back(1 + i * 37 % 3000, world.rank);
    std::vector<WorkPtr> works;
    for (auto& b : buffers)
      works.push_back(c->all_reduce(b.data(), b.data(), static_cast<std::int64_t>(b.size()),
                                    DType::i32, ReduceOp::sum));
    while (!works[50]->test()) std::this_thread::yield();
    for (std::size_t i = works.size(); i-- > 0;) works[i]->wait();
    for (const auto& b : buffers) ASSERT_EQ(b.back(), 6);
    EXPECT_EQ(c->statistics().operations, 200);
  });
}

TEST(Net, CompletesWithoutAWaitingThread) {
  const LoopbackRanks loopback(2);
  shoal::test::run_thread_ranks(2, [&](const World& world, Store& store) {
    const auto c = loopback.communicator(world, store, with_deadline(20));
    std::vector<float> a(1 << 16, 1.0f), b(4, 2.0f);
    auto first = c->all_reduce(a.data(), a.data(), 1 << 16, DType::f32, ReduceOp::sum);
    c->all_reduce(b.data(), b.data(), 4, DType::f32, ReduceOp::sum).reset();
    const auto began = Clock::now();
    while (c->statistics().operations < 2 && seconds_since(began) < 10) sleep_seconds(0.001);
    EXPECT_EQ(c->statistics().operations, 2);
    EXPECT_GT(c->statistics().by_progress_thread, 0);
    EXPECT_TRUE(first->test());
    EXPECT_EQ(a.back(), 2.0f);
    EXPECT_EQ(b.back(), 4.0f);
  });
}

TEST(Net, WaitingCostsNoCore) {
  const LoopbackRanks loopback(4);
  shoal::test::run_thread_ranks(4, [&](const World& world, Store& store) {
    const auto c = loopback.communicator(world, store, with_deadline(20));
    c->barrier()->wait();
    const std::clock_t before = std::clock();  // CPU time of the process, that is, of all ranks
    if (world.rank == 3) sleep_seconds(0.5);
    c->barrier()->wait();
    EXPECT_LT(static_cast<double>(std::clock() - before) / CLOCKS_PER_SEC, 0.25);
  });
}

TEST(Net, MessagesMatchInOrderWhateverElseRuns) {
  const LoopbackRanks loopback(3, 256);
  const transport::FaultOptions shuffled{3, 0.5, 200, 2};
  shoal::test::run_thread_ranks(3, [&](const World& world, Store& store) {
    const auto c = loopback.communicator(world, store, with_deadline(60), &shuffled);
    constexpr std::size_t kMessages = 200;  // more than a lane's window
    const int right = (world.rank + 1) % 3, left = (world.rank + 2) % 3;
    std::vector<std::vector<std::int64_t>> out, in;
    std::vector<WorkPtr> works;
    std::int64_t together = 1;
    for (std::size_t i = 0; i < kMessages; ++i) {
      out.emplace_back(1 + i % 100, world.rank * 1000 + static_cast<int>(i));
      in.emplace_back(1 + i % 100, -1);
    }
    for (std::size_t i = 0; i < kMessages; ++i) {
      const auto count = static_cast<std::int64_t>(out[i].size());
      works.push_back(c->send(out[i].data(), count, DType::i64, right));
      if (i == 70) c->all_reduce(&together, &together, 1, DType::i64, ReduceOp::sum)->wait();
      works.push_back(c->recv(in[i].data(), count, DType::i64, left));
    }
    for (auto& work : works) work->wait();
    EXPECT_EQ(together, 3);
    for (std::size_t i = 0; i < kMessages; ++i)
      ASSERT_EQ(in[i].back(), left * 1000 + static_cast<int>(i));
  });
}

TEST(Net, SplitsAreIndependentAndNest) {
  const LoopbackRanks loopback(6);
  shoal::test::run_thread_ranks(6, [&](const World& world, Store& store) {
    auto c = loopback.communicator(world, store, with_deadline(30));
    const auto half = c->split(world.rank % 2, -world.rank);
    const auto none = c->split(world.rank == 0 ? -1 : 0, 0);
    ASSERT_NE(half, nullptr);
    EXPECT_EQ(half->size(), 3);
    EXPECT_EQ(half->rank(), (5 - world.rank) / 2);
    EXPECT_EQ(none == nullptr, world.rank == 0);
    const auto pair = half->split(half->rank() == 2 ? 7 : 3, 0);
    EXPECT_EQ(pair->size(), half->rank() == 2 ? 1 : 2);
    c.reset();  // the split groups remain
    std::int64_t a = 1 << world.rank, b = 1;
    auto first = half->all_reduce(&a, &a, 1, DType::i64, ReduceOp::sum);
    if (none) none->all_reduce(&b, &b, 1, DType::i64, ReduceOp::sum)->wait();
    first->wait();
    EXPECT_EQ(a, world.rank % 2 ? 2 + 8 + 32 : 1 + 4 + 16);
    EXPECT_EQ(b, world.rank == 0 ? 1 : 5);
  });
}

std::int64_t resident_bytes() {
  std::ifstream file("/proc/self/statm");
  std::int64_t pages = 0, resident = 0;
  file >> pages >> resident;
  return resident * 4096;
}

// Numbers of operations and messages wrap around, and memory stays constant.
TEST(Net, SurvivesTheWrapAndManyOperationsInFlatMemory) {
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
  constexpr int kOperations = 3000;
  constexpr bool kMemoryTells = false;  // sanitizers keep freed memory and find leaks themselves
#else
  constexpr int kOperations = 30000;
  constexpr bool kMemoryTells = true;
#endif
  const LoopbackRanks loopback(2);
  shoal::test::run_thread_ranks(2, [&](const World& world, Store& store) {
    const auto c =
        loopback.communicator(world, store, with_deadline(60), nullptr, 0xffffffffu - 500);
    std::int64_t base = 0;
    std::vector<std::int32_t> values(8);
    for (int i = 0; i < kOperations; ++i) {
      std::fill(values.begin(), values.end(), world.rank + i);
      c->all_reduce(values.data(), values.data(), 8, DType::i32, ReduceOp::sum)->wait();
      ASSERT_EQ(values[7], 2 * i + 1);
      // Neither rank waits for the other. Only the window limits the sender.
      auto work = world.rank == 0 ? c->send(values.data(), 8, DType::i32, 1)
                                  : c->recv(values.data(), 8, DType::i32, 0);
      work->wait();
      if (i == kOperations / 10) base = resident_bytes();
    }
    if (kMemoryTells) {
      EXPECT_LT(resident_bytes() - base, 2 << 20);
    }
  });
}

// Every 64th message is acknowledged (net_group.cc), however small it is.
TEST(Net, AFastSenderCannotOverrunItsReceiver) {
  const LoopbackRanks loopback(2);
  shoal::test::run_thread_ranks(2, [&](const World& world, Store& store) {
    const auto c = loopback.communicator(world, store, with_deadline(30));
    std::vector<std::int64_t> values(64);
    std::vector<WorkPtr> works;
    if (world.rank == 0) {
      for (std::int64_t& value : values) works.push_back(c->send(&value, 1, DType::i64, 1));
      works.front()->wait();  // in flight: an unacknowledged send waits for no rank
      for (int i = 0; i < 100; ++i) EXPECT_FALSE(works.back()->test());
    }
    barrier(store, "sent", 2, Deadline::in_seconds(20));
    if (world.rank == 1)
      for (std::int64_t& value : values) works.push_back(c->recv(&value, 1, DType::i64, 0));
    for (const WorkPtr& work : works) work->wait();
  });
}

TEST(Net, AFastRootCannotOverrunASlowRank) {
  const LoopbackRanks loopback(2);
  std::atomic<int> ahead{0};
  shoal::test::run_thread_ranks(2, [&](const World& world, Store& store) {
    const auto c = loopback.communicator(world, store, with_deadline(60));
    if (world.rank == 1) {
      sleep_seconds(0.3);
      EXPECT_GT(ahead.load(), 100);
      EXPECT_LT(ahead.load(), 2 * static_cast<int>(net::NetGroup::kCollectiveReach));
    }
    std::int32_t value = 0;
    for (int i = 0; i < 5000; ++i) {
      value = world.rank == 0 ? i : -1;
      c->broadcast(&value, 1, DType::i32, 0)->wait();
      ASSERT_EQ(value, i);
      if (world.rank == 0) ahead.store(i);
    }
  });
}

}  // namespace
}  // namespace shoal::collectives
