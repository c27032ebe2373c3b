// Sums at their owners. The test drives parameters as a tape would.
#include "shoal/parallel/shard/sharded_gradients.h"

#include <memory>
#include <optional>

#include "support/error_text.h"
#include "support/idle_communicator.h"
#include "support/rank_device.h"
#include "support/ranks.h"
#include <gmock/gmock.h>

#include "shoal/nn/capture/planned_memory.h"
#include "shoal/runtime/base/error.h"
#include "shoal/runtime/device/captured_work.h"

namespace shoal::parallel {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::StartsWith;

// A rank with parameters p0, p1 ... of these sizes, in shard groups of `degree` ranks; 0: all
// ranks.
struct Rank {
  Rank(const World& world, Store& store, std::span<const std::int64_t> counts, int level,
       std::int64_t bucket_elements, int buckets_in_flight = 2, int degree = 0)
      : communicator(testing::make_test_communicator(world, store)) {
    ShardGroups groups{communicator.get(), nullptr};
    if (degree > 0) {
      const ShardPlace place = shard_place(world.rank, world.size, degree);
      shard = communicator->split(place.shard_color, place.shard_key);
      replicas = communicator->split(place.replica_color, place.replica_key);
      groups = {shard.get(), replicas.get()};
    }
    make(groups, counts,
         {.level = level,
          .bucket_elements = bucket_elements,
          .buckets_in_flight = buckets_in_flight});
  }
  // Uses groups that the caller owns.
  Rank(const ShardGroups& groups, std::span<const std::int64_t> counts,
       const ShardingOptions& sharding) {
    make(groups, counts, sharding);
  }
  void make(const ShardGroups& groups, std::span<const std::int64_t> counts,
            const ShardingOptions& sharding) {
    for (std::size_t i = 0; i < counts.size(); ++i) {
      parameters.push_back(std::make_unique<nn::Parameter>(fmt::format("p{}", i), Shape{counts[i]},
                                                           nn::Initializer{}));
      pointers.push_back(parameters.back().get());
    }
    layout = make_shard_layout(pointers, groups, sharding);
    gradients = make_sharded_gradients(layout, *kernels, *memory);
  }
  // Acts as the write of a weight gradient.
  void backward_of(std::size_t index, float value) {
    nn::Parameter& parameter = *parameters[index];
    parameter.begin_use();
    const bool add = parameter.accumulate();
    std::vector<float> gradient(static_cast<std::size_t>(parameter.shape().count()));
    if (add) gradient = testing::values_of<float>(parameter.gradient);
    for (float& element : gradient) element += value;
    testing::set_values(parameter.gradient, gradient);
    parameter.end_use();
  }
  // The elements of a parameter's sum that this rank owns.
  std::vector<float> owned(int parameter) const {
    std::vector<float> all;
    for (const ShardSegment& segment : layout.segments) {
      if (segment.parameter != parameter) continue;
      const std::vector<float> mine = testing::values_of<float>(
          gradients->part(segment.bucket)
              .narrowed(0, segment.offset - layout.plan.part_begin(segment.bucket), segment.count));
      all.insert(all.end(), mine.begin(), mine.end());
    }
    return all;
  }
  std::unique_ptr<collectives::Communicator> communicator, shard, replicas;
  std::unique_ptr<kernels::Kernels> kernels = testing::make_test_kernels(1);
  std::unique_ptr<MemoryResource> memory = testing::make_test_device_memory();
  std::vector<std::unique_ptr<nn::Parameter>> parameters;
  std::vector<nn::Parameter*> pointers;
  ShardLayout layout;
  std::unique_ptr<ShardedGradients> gradients;
};

// Gradients that no backward wrote are zero, in a bucket with other gradients and in a
// bucket of their own.
TEST(ShardedGradients, AreZeroWithoutABackward) {
  for (const int level : {1, 2})
    test::run_thread_ranks(2, [level](const World& world, Store& store) {
      Rank rank(world, store, std::vector<std::int64_t>{500, 40, 300, 5}, level, 360);
      ASSERT_EQ(rank.layout.plan.flat.buckets.size(), level == 1 ? 4u : 3u);
      for (int step = 0; step < 3; ++step) {
        rank.gradients->begin_step();
        rank.gradients->arm();
        for (const std::size_t p : {3u, 2u, 1u, 0u})
          if (step == 0 || p == 1 || p == 3) rank.backward_of(p, 1.0f);
        rank.gradients->finish();
        EXPECT_THAT(rank.owned(0), Each(step == 0 ? 2.0f : 0.0f));
        EXPECT_THAT(rank.owned(1), Each(2.0f));
        EXPECT_THAT(rank.owned(2), Each(step == 0 ? 2.0f : 0.0f));
        EXPECT_THAT(rank.owned(3), Each(2.0f));
      }
    });
}

// Replicas add the gradients of earlier microbatches even if the last one writes none.
TEST(ShardedGradients, AreSummedOverReplicasWhicheverMicrobatchWrote) {
  for (const int level : {1, 2})
    test::run_thread_ranks(4, [level](const World& world, Store& store) {
      Rank rank(world, store, std::vector<std::int64_t>{64, 64}, level, 64, 2, 2);
      for (int step = 0; step < 2; ++step) {
        rank.gradients->begin_step();
        rank.backward_of(1, 1.0f);
        rank.backward_of(0, 1.0f);
        rank.gradients->arm();
        rank.backward_of(0, 1.0f);
        rank.gradients->finish();
        EXPECT_THAT(rank.owned(0), Each(8.0f));
        EXPECT_THAT(rank.owned(1), Each(4.0f));
      }
    });
}

TEST(ShardReduction, AgreesOnTheFirstRanksNumbers) {
  test::run_thread_ranks(4, [](const World& world, Store& store) {
    Rank rank(world, store, std::vector<std::int64_t>{64}, 1, 64, 2, 2);
    std::vector<std::int32_t> numbers = {world.rank, 10 + world.rank};
    make_shard_reduction(rank.layout.groups)->agree(numbers);
    EXPECT_THAT(numbers, ::testing::ElementsAre(0, 10));
  });
}

TEST(ShardedGradients, HaveMemoryOnlyUntilTheyAreReduced) {
  test::run_thread_ranks(2, [](const World& world, Store& store) {
    Rank rank(world, store, std::vector<std::int64_t>(8, 1024), 2, 1024, 1);
    ASSERT_EQ(rank.layout.plan.flat.buckets.size(), 8u);
    const auto text = [](auto&& body) { return test::error_text(body); };
    EXPECT_THAT(text([&] { (void)rank.parameters[0]->accumulate(); }),
                HasSubstr("a gradient is written between finish() and begin_step()"));
    for (int step = 0; step < 2; ++step) {
      rank.gradients->begin_step();
      for (int microbatch = 0; microbatch < 3; ++microbatch) {
        if (microbatch == 2) rank.gradients->arm();
        for (std::size_t p = 8; p-- > 0;) rank.backward_of(p, static_cast<float>(p));
      }
      rank.parameters[5]->begin_use();
      rank.parameters[5]->accumulate();
      EXPECT_THAT(text([&] { rank.gradients->finish(); }),
                  HasSubstr("finish() while 1 uses of p5 have not been walked back"));
      testing::set_values(rank.parameters[5]->gradient, std::vector<float>(1024));
      rank.parameters[5]->end_use();
      rank.gradients->finish();
      for (int p = 0; p < 8; ++p) {
        EXPECT_THAT(rank.owned(p), Each(6.0f * static_cast<float>(p)));
        EXPECT_TRUE(rank.parameters[static_cast<std::size_t>(p)]->gradient.storage()->released());
      }
    }
    const ShardedGradientStatistics statistics = rank.gradients->statistics();
    EXPECT_EQ(statistics.reduced_bytes, 2 * (3 * 8 + 1) * 4096);
    EXPECT_EQ(statistics.launched_in_backward, 2 * (3 * 8 + 1));
    EXPECT_GE(statistics.most_full_bytes, 4096);
    EXPECT_LE(statistics.most_full_bytes, 2 * 4096);  // one being written, one in flight
  });
}

TEST(ShardedGradients, EndingInTheMiddleOfAStepEndsItForAllRanks) {
  for (const int level : {1, 2}) {
    const auto errors = test::thread_rank_errors(2, [level](const World& world, Store& store) {
      try {
        Rank rank(world, store, std::vector<std::int64_t>(4, 1024), level, 1024, 8);
        rank.gradients->begin_step();
        rank.gradients->arm();
        if (world.rank == 1) store.get("thrown", Deadline::in_seconds(20));
        for (std::size_t p = 4; p-- > 0;) {
          if (world.rank == 0 && p == 0) throw std::runtime_error("no memory for activations");
          rank.backward_of(p, 1.0f);
        }
        rank.gradients->finish();
      } catch (const std::exception&) {
        store.set("thrown", "");
        throw;
      }
    });
    EXPECT_EQ(errors[0], "no memory for activations");
    EXPECT_THAT(errors[1], ::testing::ContainsRegex("destroyed in the middle of a step"));
  }
}

// The allocations and releases of one of two ranks (with replicas, of four) from symmetric
// memory, in order, in a step of three microbatches. `done`: the answer when the step
// tests a sum in flight.
std::string memory_of_a_step(bool repeatable, bool replicated, const std::function<bool()>& done) {
  const auto source = testing::make_test_device_memory();
  nn::PlannedMemory memory(*source);
  test::IdleCommunicator shard(0, 2, memory, done), replicas(0, 2, memory, done);
  Rank rank({&shard, replicated ? &replicas : nullptr}, std::vector<std::int64_t>(5, 1024),
            {.level = 2, .bucket_elements = 1024, .buckets_in_flight = 2});
  std::optional<RepeatableStep> repeats;
  if (repeatable) repeats.emplace();
  memory.begin_recording();
  rank.gradients->begin_step();
  for (int microbatch = 0; microbatch < 3; ++microbatch) {
    if (microbatch == 2) rank.gradients->arm();
    for (std::size_t p = 5; p-- > 0;) rank.backward_of(p, 1.0f);
  }
  rank.gradients->finish();
  const nn::MemorySequence sequence = memory.end_recording();
  EXPECT_EQ(sequence.outliving, 0);
  EXPECT_THAT(rank.owned(0), Each(3.0f));
  std::string text;
  for (const auto& call : sequence.calls)
    text += fmt::format("{}{} ", call.bytes > 0 ? '+' : '-', call.block);
  return text;
}

// Captured steps share the plan of one recorded step. A bucket is released when the second
// one after it is full.
TEST(ShardedGradients, CapturedStepsReleaseBucketsInAFixedOrder) {
  for (const bool replicated : {false, true}) {
    const auto memory = [&](bool repeatable, const std::function<bool()>& done) {
      return memory_of_a_step(repeatable, replicated, done);
    };
    const auto never = [] { return false; };
    const auto always = [] { return true; };
    const auto now_and_then = [asked = 0]() mutable { return ++asked % 3 == 0; };
    const std::string want = memory(true, never);
    EXPECT_EQ(memory(true, always), want);
    EXPECT_EQ(memory(true, now_and_then), want);
    EXPECT_THAT(want, StartsWith("+0 +1 +2 -0 +3 -1 +4 -2 "));
    EXPECT_NE(memory(false, always), memory(false, never))
        << "without capture the order depends on timing";
  }
}

}  // namespace
}  // namespace shoal::parallel
