// Every sharding level compared with the same training on one rank, with dropout.
#include <cmath>
#include <cstring>

#include "rig.h"
#include "support/error_text.h"
#include <gmock/gmock.h>

#include "shoal/runtime/base/error.h"

namespace shoal::parallel {
namespace {

using ::testing::HasSubstr;

// The references are made once, before any rank runs.
const Outcome& alone(int ranks, DType compute = DType::f32) {
  static std::map<std::pair<int, DType>, Outcome> made;
  const auto [found, fresh] = made.try_emplace({ranks, compute});
  if (fresh) found->second = train_alone(ranks, compute);
  return found->second;
}

void expect_same(const Outcome& got, const Outcome& want, double tolerance,
                 const std::string& what) {
  for (int step = 0; step < kSteps; ++step) {
    const auto i = static_cast<std::size_t>(step);
    EXPECT_NEAR(got.losses[i], want.losses[i], tolerance * want.losses[i]) << what << step;
    EXPECT_NEAR(got.norms[i], want.norms[i], 10 * tolerance * want.norms[i]) << what << step;
    EXPECT_FALSE(got.skipped[i]);
  }
  EXPECT_NEAR(got.evaluated, want.evaluated, tolerance * want.evaluated) << what;
  double whole = 0, apart = 0;
  for (const auto& [name, values] : want.gradients)
    for (std::size_t i = 0; i < values.size(); ++i) {
      whole += values[i] * values[i];
      const double difference = got.gradients.at(name).at(i) - values[i];
      apart += difference * difference;
    }
  EXPECT_LT(std::sqrt(apart), 0.5 * tolerance * std::sqrt(whole)) << what;
}

// Buckets are small, so that there are many. The threshold leaves biases and norms unsharded.
ShardingOptions sharding(int level) {
  return {.level = level, .bucket_elements = 1500, .persistence_threshold = 72};
}

struct Case {
  int degree, copies;
};
class ShardedTraining : public ::testing::TestWithParam<Case> {};

TEST_P(ShardedTraining, GivesOneRanksLosses) {
  const auto [degree, copies] = GetParam();
  const int ranks = degree * copies;
  struct Run {
    int level;
    RunOptions options;
  };
  std::vector<Run> runs;
  for (int level = 1; level <= 3; ++level)
    for (const int microbatches : {1, 3})
      for (const int group : {0, 2})
        runs.push_back({level, {.microbatches = microbatches, .checkpoint_group = group}});
  for (int level = 1; level <= 3; ++level) {
    runs.push_back({level, {.microbatches = 3, .order = Order::all_in_flight}});
    runs.push_back(
        {level, {.microbatches = 3, .checkpoint_group = 1, .order = Order::weights_later}});
  }
  std::vector<Outcome> outcomes(runs.size());
  std::mutex mutex;
  const Outcome& want = alone(ranks);
  test::run_thread_ranks(ranks, [&](const World& world, Store& store) {
    const Groups groups(world, store, degree);
    for (std::size_t i = 0; i < runs.size(); ++i)
      train(world, groups, sharding(runs[i].level), runs[i].options, outcomes[i], mutex);
    groups.all->barrier()->wait();
  });
  for (std::size_t i = 0; i < runs.size(); ++i)
    expect_same(
        outcomes[i], want, 2e-5,
        fmt::format("level {}, {} microbatches, groups of {}, order {}, step ", runs[i].level,
                    runs[i].options.microbatches, runs[i].options.checkpoint_group,
                    static_cast<int>(runs[i].options.order)));
}

INSTANTIATE_TEST_SUITE_P(Degrees, ShardedTraining,
                         ::testing::Values(Case{1, 1}, Case{2, 1}, Case{3, 1}, Case{4, 1},
                                           Case{1, 2}, Case{2, 2}, Case{3, 2}, Case{4, 2}),
                         [](const auto& test) {
                           return fmt::format("{}x{}", test.param.degree, test.param.copies);
                         });

Outcome run(int ranks, int degree, const ShardingOptions& options, const RunOptions& run_options) {
  Outcome outcome;
  std::mutex mutex;
  test::run_thread_ranks(ranks, [&](const World& world, Store& store) {
    const Groups groups(world, store, degree);
    train(world, groups, options, run_options, outcome, mutex);
    groups.all->barrier()->wait();
  });
  return outcome;
}

TEST(ShardedTraining, GivesTheSameBitsTwice) {
  for (int level = 1; level <= 3; ++level) {
    const RunOptions options{.microbatches = 3, .checkpoint_group = 1};
    const Outcome first = run(4, 2, sharding(level), options);
    const Outcome second = run(4, 2, sharding(level), options);
    ASSERT_FALSE(first.masters.empty());
    EXPECT_EQ(first.masters, second.masters) << "level " << level;
    EXPECT_EQ(first.norms, second.norms) << "level " << level;
  }
}

TEST(ShardedTraining, KeepsMastersOfSixteenBitValues) {
  for (int level = 1; level <= 3; ++level) {
    const Outcome got = run(3, 3, sharding(level), {.compute = DType::bf16, .microbatches = 3});
    expect_same(got, alone(3, DType::bf16), 2e-3, fmt::format("level {}, step ", level));
    // Count the values that bf16 cannot represent.
    int finer = 0;
    for (const float master : got.masters.at("transformer.wte.weight")) {
      std::uint32_t bits = 0;
      std::memcpy(&bits, &master, sizeof bits);
      finer += (bits & 0xffffu) != 0;
    }
    EXPECT_GT(finer, 1000);
  }
}

TEST(ShardedTraining, SkipsAnOverflowOnEveryRank) {
  const Outcome want = train_alone(4, DType::f32, 2);
  ASSERT_TRUE(want.skipped[2]);
  for (int level = 1; level <= 3; ++level) {
    const Outcome got = run(4, 2, sharding(level), {.overflow_step = 2});
    EXPECT_EQ(got.skipped, want.skipped) << "level " << level;
    for (const std::size_t step : {3u, 4u})  // as if the skipped step had not been
      EXPECT_NEAR(got.losses[step], want.losses[step], 2e-5 * want.losses[step]);
  }
}

// Prefetching changes only when values arrive.
TEST(ShardedTraining, GathersNoMoreParametersThanTheLimit) {
  const nn::DecoderConfig config = tiny();
  const std::int64_t block = 12 * config.hidden_size * config.hidden_size + 13 * config.hidden_size;
  for (const bool prefetch : {false, true})
    test::run_thread_ranks(2, [&](const World& world, Store& store) {
      const Groups groups(world, store, 2);
      Rig rig;
      Sharded sharded(
          rig, groups.groups,
          {.level = 3, .persistence_threshold = 0, .max_live_parameters = prefetch ? 1'000'000 : 1},
          DType::f32);
      ChainStage stage(rig.context, rig.gpt2, {0, rig.gpt2.units()}, {.observer = &sharded.units});
      sharded.gradients->begin_step();
      rig.compute(stage, rig.batches(0, world.rank, 2, 1), Order::one_by_one,
                  [&] { sharded.gradients->arm(); });
      sharded.gradients->finish();
      const ShardedUnitsStatistics& statistics = sharded.units.statistics();
      // Forward: tied table and positions, 3 blocks, head (norm and table, which were dropped in
      // between). Backward: the head is still present; 3 blocks, the embeddings.
      EXPECT_EQ(statistics.gathers, 2 + 3 + 2 + 3 + 2);
      if (!prefetch) {
        EXPECT_EQ(statistics.prefetched, 0);
        EXPECT_LT(statistics.most_live_elements, block + 200);
      } else {
        EXPECT_EQ(statistics.prefetched, statistics.gathers - 2);
        EXPECT_GT(statistics.most_live_elements, 2 * block);
      }
      groups.all->barrier()->wait();
    });
}

TEST(ShardedTraining, PrefetchesOnlyWithinTheLimit) {
  test::run_thread_ranks(2, [&](const World& world, Store& store) {
    const Groups groups(world, store, 2);
    // One block fits, but not two.
    const nn::DecoderConfig config = tiny();
    const std::int64_t most = 2 * 12 * config.hidden_size * config.hidden_size;
    Rig rig;
    Sharded sharded(rig, groups.groups,
                    {.level = 3, .persistence_threshold = 0, .max_live_parameters = most},
                    DType::f32);
    ChainStage stage(rig.context, rig.gpt2, {0, rig.gpt2.units()}, {.observer = &sharded.units});
    (void)rig.evaluate(stage, rig.batches(0, world.rank, 2, 1));
    EXPECT_GT(sharded.units.statistics().prefetched, 0);
    EXPECT_LE(sharded.units.statistics().most_live_elements, most);
    sharded.units.drop_idle();
    groups.all->barrier()->wait();
  });
}

TEST(ShardedTraining, RefusesWrongUse) {
  test::run_thread_ranks(2, [](const World& world, Store& store) {
    const Groups groups(world, store, 2);
    const auto text = [](auto&& body) { return test::error_text(body); };
    {
      Rig rig;
      const auto parameters = rig.gpt2.parameters();
      EXPECT_THAT(text([&] { make_shard_layout(parameters, groups.groups, {.level = 4}); }),
                  HasSubstr("sharding level 4; 1 shards optimizer state"));
      EXPECT_THAT(text([&] { make_shard_layout(parameters, groups.groups, {.level = 3}); }),
                  HasSubstr("give the units of the Chain"));
      EXPECT_THAT(
          text([&] { make_shard_layout(parameters, groups.groups, {.max_live_parameters = 0}); }),
          HasSubstr("sdp_max_live_parameters = 0"));
    }
    for (int level = 1; level <= 3; ++level) {
      Rig rig;
      Sharded sharded(rig, groups.groups, sharding(level), DType::f32);
      sharded.gradients->begin_step();
      EXPECT_THAT(text([&] { sharded.gradients->finish(); }), HasSubstr("finish() without arm()"));
      sharded.gradients->arm();
      EXPECT_THAT(text([&] { sharded.gradients->arm(); }), HasSubstr("arm() twice"));
      if (level == 3) {
        const nn::Parameter& table = *rig.gpt2.parameters().front();
        EXPECT_THAT(text([&] { (void)table.value.const_view(); }), HasSubstr("a released storage"));
        sharded.values.wait_for(table);
        EXPECT_EQ(table.value.const_view().shape, table.shape());
      }
    }
    groups.all->barrier()->wait();
  });
}

}  // namespace
}  // namespace shoal::parallel
