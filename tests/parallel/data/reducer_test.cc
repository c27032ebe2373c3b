// The Reducer compared with sums computed on one rank. The test drives parameters as a tape would.
#include "shoal/parallel/data/reducer.h"

#include <memory>
#include <thread>

#include "support/rank_device.h"
#include "support/ranks.h"
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shoal/collectives/communicator_options.h"
#include "shoal/runtime/base/error.h"

namespace shoal::parallel {
namespace {

using collectives::Communicator;
using collectives::CommunicatorOptions;
using ::testing::Each;

using Parameters = std::vector<std::unique_ptr<nn::Parameter>>;

Parameters make_parameters(std::span<const std::int64_t> counts) {
  Parameters parameters;
  for (std::size_t i = 0; i < counts.size(); ++i)
    parameters.push_back(std::make_unique<nn::Parameter>(fmt::format("p{}", i), Shape{counts[i]},
                                                         nn::Initializer{}));
  return parameters;
}

std::vector<nn::Parameter*> pointers(const Parameters& parameters) {
  std::vector<nn::Parameter*> result;
  for (const auto& parameter : parameters) result.push_back(parameter.get());
  return result;
}

// Acts as the write of a weight gradient.
void backward_of(nn::Parameter& parameter, float value) {
  parameter.begin_use();
  const bool add = parameter.accumulate();
  std::vector<float> gradient(static_cast<std::size_t>(parameter.shape().count()));
  if (add) gradient = testing::values_of<float>(parameter.gradient);
  for (std::size_t i = 0; i < gradient.size(); ++i)
    gradient[i] += value * static_cast<float>(i % 5 + 1);
  testing::set_values(parameter.gradient, gradient);
  parameter.end_use();
}

std::vector<float> values(const nn::Parameter& parameter) {
  return testing::values_of<float>(parameter.gradient);
}

std::vector<float> expected(std::int64_t count, float value) {
  std::vector<float> result;
  for (std::int64_t i = 0; i < count; ++i) result.push_back(value * static_cast<float>(i % 5 + 1));
  return result;
}

std::unique_ptr<Communicator> communicator_of(const World& world, Store& store) {
  CommunicatorOptions options;
  options.deadline_seconds = 30;
  return testing::make_test_communicator(world, store, options);
}

const std::vector<std::int64_t> kCounts{5000, 3, 1, 70000, 17, 2000, 900, 40000};

class ReducerRanks : public ::testing::TestWithParam<int> {};

TEST_P(ReducerRanks, SumsOverAllRanksAndMicrobatches) {
  test::run_thread_ranks(GetParam(), [](const World& world, Store& store) {
    const auto communicator = communicator_of(world, store);
    const auto parameters = make_parameters(kCounts);
    Reducer reducer(pointers(parameters), *communicator, {.bucket_bytes = 64 << 10});
    ASSERT_GT(reducer.plan().buckets.size(), 3u);
    for (int step = 1; step <= 4; ++step) {
      reducer.begin_step();
      for (int microbatch = 0; microbatch < 3; ++microbatch) {
        if (microbatch == 2) reducer.arm();
        // Ranks become ready in different orders. Turns keep their collectives in the same order.
        for (std::size_t i = 0; i < parameters.size(); ++i) {
          const std::size_t index = world.rank % 2 == 0 ? parameters.size() - 1 - i : i;
          backward_of(*parameters[index], static_cast<float>((world.rank + 1) * step));
        }
      }
      reducer.finish();
      const int ranks = world.size * (world.size + 1) / 2;
      for (std::size_t i = 0; i < parameters.size(); ++i)
        ASSERT_EQ(values(*parameters[i]),
                  expected(kCounts[i], static_cast<float>(3 * step * ranks)))
            << "step " << step << " parameter " << i;
    }
    EXPECT_EQ(reducer.statistics().steps, 4);
    EXPECT_EQ(communicator->statistics().bounced, 0);
  });
}

// Gradients that no backward wrote are zeroed in stream order, after queued work.
TEST_P(ReducerRanks, ClearsAfterQueuedWork) {
  test::run_thread_ranks(GetParam(), [](const World& world, Store& store) {
    const auto communicator = communicator_of(world, store);
    const auto parameters = make_parameters(kCounts);
    Reducer reducer(pointers(parameters), *communicator, {.bucket_bytes = 64 << 10});
    const Tensor& gradient = parameters[0]->gradient;
    device_backend(gradient.device().type)
        .fill(gradient.view().data, 0x41, gradient.bytes(), communicator->stream());
    reducer.begin_step();
    reducer.arm();
    reducer.finish();
    EXPECT_THAT(values(*parameters[0]), Each(0.0f));
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, ReducerRanks, ::testing::Values(1, 2, 3, 5));

TEST(Reducer, ReducesUnusedParametersAsZerosWithoutHanging) {
  test::run_thread_ranks(3, [](const World& world, Store& store) {
    const auto communicator = communicator_of(world, store);
    const auto parameters = make_parameters(kCounts);
    Reducer reducer(pointers(parameters), *communicator, {.bucket_bytes = 8 << 10});
    for (int step = 0; step < 3; ++step) {
      reducer.begin_step();
      // Parameter 1 is written only in an earlier microbatch, parameter 3 only on one rank,
      // and parameter 6 never.
      backward_of(*parameters[1], 1.0f);
      reducer.arm();
      for (std::size_t i = 0; i < parameters.size(); ++i)
        if (i != 1 && i != 6 && (i != 3 || world.rank == step)) backward_of(*parameters[i], 1.0f);
      reducer.finish();
      for (std::size_t i = 0; i < parameters.size(); ++i)
        ASSERT_EQ(values(*parameters[i]), expected(kCounts[i], i == 6   ? 0.0f
                                                               : i == 3 ? 1.0f
                                                                        : 3.0f))
            << "step " << step << " parameter " << i;
    }
  });
}

TEST(Reducer, StartsBucketsDuringBackward) {
  test::run_thread_ranks(2, [](const World& world, Store& store) {
    const auto communicator = communicator_of(world, store);
    const auto parameters = make_parameters(kCounts);
    Reducer reducer(pointers(parameters), *communicator,
                    {.bucket_bytes = 8 << 10, .buckets_in_flight = 1000});
    // Parameters become ready from first to last, opposite to the first step's turns.
    for (int step = 0; step < 2; ++step) {
      reducer.begin_step();
      reducer.arm();
      for (const auto& parameter : parameters) backward_of(*parameter, 1.0f);
      reducer.finish();
    }
    const auto buckets = static_cast<std::int64_t>(reducer.plan().buckets.size());
    // In the second step rank 0's order is known, and every bucket is sent before finish().
    EXPECT_EQ(reducer.statistics().launched_in_backward, 2 * buckets);
  });
}

// Ready buckets are reduced during backward. When it ends, all but the last ready one have been
// summed.
TEST(Reducer, ReducesBehindBackward) {
  test::run_thread_ranks(2, [](const World& world, Store& store) {
    const auto communicator = communicator_of(world, store);
    const auto parameters = make_parameters(std::vector<std::int64_t>(8, 1024));
    Reducer reducer(pointers(parameters), *communicator,
                    {.bucket_bytes = 4096, .first_bucket_bytes = 4096, .buckets_in_flight = 2});
    ASSERT_EQ(reducer.plan().buckets.size(), 8u);
    reducer.begin_step();
    reducer.arm();
    for (std::size_t i = parameters.size(); i-- > 0;) {
      backward_of(*parameters[i], 1.0f);
      if (i == 0) break;
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
    reducer.finish();
    const ReducerStatistics statistics = reducer.statistics();
    EXPECT_EQ(statistics.reduced_bytes, 8 * 4096);
    EXPECT_GE(statistics.hidden_bytes, 6 * 4096);
    EXPECT_GE(statistics.hidden_share(), 0.75);
    EXPECT_LE(statistics.most_in_flight, 2);
    EXPECT_LT(statistics.exposed_seconds, 0.4);
    // After backward no communication can be hidden.
    reducer.begin_step();
    reducer.arm();
    reducer.finish();
    const ReducerStatistics second = reducer.statistics() - statistics;
    EXPECT_EQ(second.steps, 1);
    EXPECT_EQ(second.hidden_bytes, 0);
    EXPECT_EQ(second.reduced_bytes, 8 * 4096);
  });
}

TEST(Reducer, KeepsToTheBoundOfBucketsInFlight) {
  for (const int bound : {1, 3})
    test::run_thread_ranks(2, [bound](const World& world, Store& store) {
      const auto communicator = communicator_of(world, store);
      const auto parameters = make_parameters(std::vector<std::int64_t>(20, 1024));
      Reducer reducer(
          pointers(parameters), *communicator,
          {.bucket_bytes = 4096, .first_bucket_bytes = 4096, .buckets_in_flight = bound});
      for (int step = 0; step < 3; ++step) {
        reducer.begin_step();
        reducer.arm();
        for (std::size_t i = parameters.size(); i-- > 0;) {
          // Rank 1 is late, so that all of rank 0's buckets could be in flight.
          if (world.rank == 1) std::this_thread::sleep_for(std::chrono::milliseconds(1));
          backward_of(*parameters[i], 1.0f);
        }
        reducer.finish();
        for (const auto& parameter : parameters)
          ASSERT_EQ(values(*parameter), expected(1024, 2.0f));
      }
      EXPECT_LE(reducer.statistics().most_in_flight, bound);
      if (world.rank == 0) {
        EXPECT_EQ(reducer.statistics().most_in_flight, bound);
      }
    });
}

TEST(Reducer, CutsAGiantParameterAndSumsAllOfIt) {
  test::run_thread_ranks(3, [](const World& world, Store& store) {
    const auto communicator = communicator_of(world, store);
    const std::vector<std::int64_t> counts{50'001, 10};
    const auto parameters = make_parameters(counts);
    Reducer reducer(pointers(parameters), *communicator, {.bucket_bytes = 10'000});
    EXPECT_GT(reducer.plan().buckets.size(), 20u);
    for (int step = 0; step < 3; ++step) {
      reducer.begin_step();
      reducer.arm();
      // In the last step no backward writes the giant parameter. It is zeroed, also
      // beyond its first bucket.
      if (step < 2) backward_of(*parameters[0], static_cast<float>(world.rank));
      backward_of(*parameters[1], 1.0f);
      reducer.finish();
      EXPECT_EQ(values(*parameters[0]), expected(counts[0], step < 2 ? 3.0f : 0.0f));
      EXPECT_EQ(values(*parameters[1]), expected(counts[1], 3.0f));
    }
  });
}

TEST(Reducer, WaitsForOneParameterWhileOthersAreUnderWay) {
  test::run_thread_ranks(2, [](const World& world, Store& store) {
    const auto communicator = communicator_of(world, store);
    const auto parameters = make_parameters(std::vector<std::int64_t>(12, 1024));
    Reducer reducer(pointers(parameters), *communicator,
                    {.bucket_bytes = 4096,
                     .first_bucket_bytes = 4096,
                     .buckets_in_flight = 1,
                     .priority = BucketPriority::forward});
    reducer.wait_for(*parameters[0]);  // nothing is in flight yet
    for (int step = 1; step <= 4; ++step) {
      reducer.begin_step();
      reducer.arm();
      EXPECT_THROW(reducer.wait_for(*parameters[0]), Error);
      for (std::size_t i = parameters.size(); i-- > 0;)
        backward_of(*parameters[i], static_cast<float>(step));
      reducer.flush();
      // As in the next forward: each parameter is awaited just before its use, and ranks
      // run at their own pace.
      for (const auto& parameter : parameters) {
        if (world.rank == 1) std::this_thread::sleep_for(std::chrono::milliseconds(1));
        reducer.wait_for(*parameter);
        ASSERT_EQ(values(*parameter), expected(1024, 2.0f * static_cast<float>(step)));
      }
      EXPECT_THROW(reducer.arm(), Error);
      reducer.finish();
    }
    // The buckets were ready long before they could be sent. The last ready bucket, which the
    // forward needs first, is no longer sent last.
    ASSERT_EQ(reducer.turns().size(), 12u);
    EXPECT_NE(reducer.turns().back(), 11);
  });
}

// The callbacks run once a step for each parameter: on_complete before any of it is sent, and
// on_reduced only after backward and before the wait for it returns.
TEST(Reducer, ReportsCompleteAndReducedGradients) {
  for (const int ranks : {1, 2})
    test::run_thread_ranks(ranks, [](const World& world, Store& store) {
      const auto communicator = communicator_of(world, store);
      const auto parameters = make_parameters(std::vector<std::int64_t>{1024, 5000, 0, 700});
      std::vector<std::string> complete, reduced;
      bool backward = false;
      float wanted = 0;
      Reducer reducer(pointers(parameters), *communicator,
                      {.bucket_bytes = 4096,
                       .first_bucket_bytes = 4096,
                       .on_reduced =
                           [&](nn::Parameter& parameter) {
                             EXPECT_FALSE(backward);
                             EXPECT_EQ(values(parameter),
                                       expected(parameter.shape().count(), wanted));
                             reduced.push_back(parameter.name());
                           },
                       .on_complete =
                           [&](nn::Parameter& parameter) {
                             const auto own = static_cast<float>(world.rank + 1);
                             EXPECT_EQ(values(parameter), expected(parameter.shape().count(), own));
                             complete.push_back(parameter.name());
                           }});
      for (int step = 0; step < 3; ++step) {
        complete.clear();
        reduced.clear();
        wanted = static_cast<float>(world.size * (world.size + 1)) / 2;
        reducer.begin_step();
        reducer.arm();
        backward = true;
        for (std::size_t i = parameters.size(); i-- > 0;)
          backward_of(*parameters[i], static_cast<float>(world.rank + 1));
        backward = false;
        reducer.flush();
        reducer.wait_for(*parameters[1]);
        EXPECT_THAT(reduced, ::testing::Contains("p1"));
        reducer.finish();
        EXPECT_THAT(complete, ::testing::UnorderedElementsAre("p0", "p1", "p2", "p3"));
        EXPECT_THAT(reduced, ::testing::UnorderedElementsAre("p0", "p1", "p2", "p3"));
      }
    });
}

TEST(Reducer, SharedParametersCountOnceTheirLastUseEnds) {
  test::run_thread_ranks(2, [](const World& world, Store& store) {
    const auto communicator = communicator_of(world, store);
    const auto parameters = make_parameters(std::vector<std::int64_t>{100, 100});
    Reducer reducer(pointers(parameters), *communicator, {.bucket_bytes = 400});
    reducer.begin_step();
    nn::Parameter& tied = *parameters[1];
    tied.begin_use();  // the other use is still on the tape
    reducer.arm();
    backward_of(tied, 1.0f);
    EXPECT_EQ(communicator->statistics().operations, 0);
    backward_of(*parameters[0], 1.0f);
    tied.accumulate();
    std::vector<float> gradient = values(tied);
    gradient[0] += 5.0f;
    testing::set_values(tied.gradient, gradient);
    tied.end_use();
    reducer.finish();
    EXPECT_EQ(values(tied)[0], 12.0f);
  });
}

TEST(Reducer, LeavesFrozenParametersAloneAndKeepsPaddingZero) {
  test::run_thread_ranks(2, [](const World& world, Store& store) {
    const auto communicator = communicator_of(world, store);
    const auto parameters = make_parameters(std::vector<std::int64_t>{5, 7, 33});
    parameters[1]->set_trainable(false);
    Reducer reducer(pointers(parameters), *communicator);
    EXPECT_FALSE(parameters[1]->gradient.defined());
    reducer.begin_step();
    reducer.arm();
    backward_of(*parameters[0], 1.0f);
    backward_of(*parameters[2], 1.0f);
    reducer.finish();
    const Tensor flat = reducer.flat();
    ASSERT_EQ(flat.count(), 48 + 16);
    const std::vector<float> values = testing::values_of<float>(flat);
    const auto all = values.begin();
    const std::vector<float> first_padding(all + 33, all + 48), second_padding(all + 53, all + 64);
    EXPECT_THAT(first_padding, Each(0.0f));
    EXPECT_THAT(second_padding, Each(0.0f));
  });
}

TEST(Reducer, RefusesCallsOutOfOrder) {
  const auto store = make_hash_store();
  const auto communicator = communicator_of(test::local_world(0, 1), *store);
  const auto parameters = make_parameters(std::vector<std::int64_t>{4});
  Reducer reducer(pointers(parameters), *communicator);
  reducer.begin_step();
  EXPECT_THROW(reducer.finish(), Error);
  reducer.arm();
  EXPECT_THROW(reducer.arm(), Error);
  reducer.flush();
  EXPECT_THROW(reducer.flush(), Error);
  EXPECT_THROW(reducer.arm(), Error);
  reducer.finish();
  EXPECT_EQ(reducer.statistics().hidden_share(), 1.0);  // there was nothing to hide
  EXPECT_THROW(Reducer(pointers(parameters), *communicator, {.buckets_in_flight = -1}), Error);
}

TEST(Reducer, EndingInTheMiddleOfAStepEndsItForAllRanks) {
  const auto errors = test::thread_rank_errors(2, [](const World& world, Store& store) {
    const auto communicator = communicator_of(world, store);
    const auto parameters = make_parameters(kCounts);
    const auto start = Clock::now();
    try {
      Reducer reducer(pointers(parameters), *communicator, {.bucket_bytes = 64 << 10});
      reducer.begin_step();
      reducer.arm();
      if (world.rank == 1) store.get("thrown", Deadline::in_seconds(20));
      for (std::size_t i = parameters.size(); i-- > 0;) {
        if (world.rank == 0 && i == 0) throw std::runtime_error("no memory for activations");
        backward_of(*parameters[i], 1.0f);
      }
      reducer.finish();
    } catch (const std::exception&) {
      store.set("thrown", "");
      EXPECT_LT(seconds_since(start), 10);
      throw;
    }
  });
  EXPECT_EQ(errors[0], "no memory for activations");
  EXPECT_THAT(errors[1], ::testing::HasSubstr("a Reducer was destroyed in the middle of a step"));
}

TEST(Reducer, PassesAPeersDeathOn) {
  const auto errors = test::thread_rank_errors(2, [](const World& world, Store& store) {
    const auto communicator = communicator_of(world, store);
    const auto parameters = make_parameters(kCounts);
    Reducer reducer(pointers(parameters), *communicator);
    reducer.begin_step();
    if (world.rank == 1) return;
    reducer.arm();
    for (const auto& parameter : parameters) backward_of(*parameter, 1.0f);
    reducer.finish();
  });
  EXPECT_THAT(errors[0], ::testing::HasSubstr("rank 1 left the group"));
}

}  // namespace
}  // namespace shoal::parallel
