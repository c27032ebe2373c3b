// Partitioning a model into stages.
#include "shoal/parallel/pipeline/partition.h"

#include <functional>
#include <limits>

#include "nn/fixture.h"
#include "support/error_text.h"
#include "support/rank_device.h"
#include "support/ranks.h"
#include <gmock/gmock.h>

#include "shoal/nn/models/causal_lm.h"
#include "shoal/parallel/pipeline/measure_units.h"

namespace shoal::parallel {
namespace {

using test::error_text;
using ::testing::AllOf;
using ::testing::DoubleEq;
using ::testing::HasSubstr;
using ::testing::Pointwise;

std::vector<UnitCost> units_of(const std::vector<double>& seconds,
                               const std::vector<std::int64_t>& parameters = {}) {
  std::vector<UnitCost> units;
  for (std::size_t i = 0; i < seconds.size(); ++i) {
    units.emplace_back();
    units.back().name = "u" + std::to_string(i);
    units.back().seconds = seconds[i];
    if (!parameters.empty()) units.back().parameters[static_cast<int>(i)] = parameters[i];
  }
  return units;
}

// Tries every partition and returns the lowest cost of a most expensive stage. Costs are shares of
// the totals of `found`.
double best_of_all(std::span<const UnitCost> units, const PartitionOptions& options,
                   const Partition& found) {
  double bytes = 0, seconds = 0;
  for (const StageCost& stage : found.costs) {
    bytes += stage.memory_bytes;
    seconds += stage.seconds;
  }
  const auto largest = [&](const Partition& cut) {
    double most = 0;
    for (const StageCost& stage : cut.costs)
      most = std::max(most, options.memory_weight * stage.memory_bytes / bytes +
                                (1 - options.memory_weight) * stage.seconds / seconds);
    return most;
  };
  double best = std::numeric_limits<double>::infinity();
  const auto n = static_cast<int>(units.size());
  std::vector<int> counts;
  const std::function<void(int)> visit = [&](int left) {
    if (static_cast<int>(counts.size()) == options.stages - 1) {
      counts.push_back(left);
      best = std::min(best, largest(partition_by_counts(
                                units, fmt::format("{}", fmt::join(counts, ",")), options)));
      counts.pop_back();
      return;
    }
    const int others = options.stages - static_cast<int>(counts.size()) - 1;
    for (int take = 1; take <= left - others; ++take) {
      counts.push_back(take);
      visit(left - take);
      counts.pop_back();
    }
  };
  visit(n);
  return best;
}

TEST(Partition, LargestStageIsTheSmallestPossible) {
  std::uint32_t random = 7;
  for (int round = 0; round < 40; ++round) {
    std::vector<double> seconds;
    std::vector<std::int64_t> parameters;
    for (int i = 0; i < 3 + round % 7; ++i) {
      random = random * 1664525u + 1013904223u;
      seconds.push_back(1 + static_cast<double>(random >> 16) / 6000);
      parameters.push_back(random >> 20);
    }
    auto units = units_of(seconds, parameters);
    units.back().parameters = units.front().parameters;  // tied
    for (UnitCost& unit : units) {
      random = random * 1664525u + 1013904223u;
      unit.activation_bytes = random >> 17;
    }
    PartitionOptions options{.stages = 1 + round % 4, .memory_weight = 0.25 * (round % 5)};
    options.stages = std::min(options.stages, static_cast<int>(units.size()));
    options.checkpoint_group = round % 3;
    if (round % 2 == 1)
      for (int s = options.stages; s > 0; --s) options.microbatches_kept.push_back(s);
    const Partition found = partition_units(units, options);
    EXPECT_NEAR(found.largest(), best_of_all(units, options, found), 1e-12) << round;
    ASSERT_EQ(found.stages.size(), static_cast<std::size_t>(options.stages));
    int at = 0;
    for (const UnitRange& range : found.stages) {
      EXPECT_EQ(range.first, at);
      EXPECT_LT(range.first, range.last);
      at = range.last;
    }
    EXPECT_EQ(at, static_cast<int>(units.size()));
  }
}

TEST(Partition, WeighsMemoryAgainstComputation) {
  const auto units = units_of({1, 1, 1, 1, 4}, {1000, 100, 100, 100, 100});
  const auto cut = [&](double weight) {
    return partition_units(units, {.stages = 2, .memory_weight = weight}).stages[0].last;
  };
  EXPECT_EQ(cut(0), 4) << "the last unit takes half of the time";
  EXPECT_EQ(cut(1), 1) << "the first one holds most of the memory";
}

std::vector<double> shares_of(const Partition& partition) {
  std::vector<double> shares;
  for (const StageCost& stage : partition.costs) shares.push_back(stage.cost);
  return shares;
}

// 1F1B with two stages: the first keeps two microbatches.
TEST(Partition, SharesAreOfWhatAllStagesHold) {
  auto units = units_of({1, 1, 1, 1}, {10, 10, 10, 10});
  for (UnitCost& unit : units) unit.activation_bytes = 100;
  PartitionOptions options{.stages = 2, .memory_weight = 1, .microbatches_kept = {2, 1}};
  const Partition memory = partition_by_counts(units, "2,2", options);
  EXPECT_EQ(memory.costs[0].microbatches, 2);
  EXPECT_EQ(memory.costs[0].memory_bytes, 2 * (16 * 10 + 2 * 100));
  EXPECT_EQ(memory.costs[1].memory_bytes, 2 * (16 * 10 + 1 * 100));
  EXPECT_THAT(shares_of(memory), Pointwise(DoubleEq(), {720.0 / 1240, 520.0 / 1240}));
  options.memory_weight = 0.25;
  EXPECT_THAT(shares_of(partition_by_counts(units, "1,3", options)),
              Pointwise(DoubleEq(), {0.25 * 360 / 1140 + 0.75 / 4, 0.25 * 780 / 1140 + 2.25 / 4}));
  // A tied table takes memory on both stages.
  units[3].parameters = {{0, 10}, {3, 30}};
  options.memory_weight = 1;
  EXPECT_THAT(shares_of(partition_by_counts(units, "2,2", options)),
              Pointwise(DoubleEq(), {720.0 / 1720, 1000.0 / 1720}));
}

// Blocks of one checkpoint group keep only one input. Embeddings and head keep what they kept
// before.
TEST(Partition, AGroupOfCheckpointsKeepsOneInput) {
  auto units = units_of({1, 1, 1, 1, 1, 1, 1, 1});
  for (std::size_t unit = 0; unit < units.size(); ++unit)
    units[unit].activation_bytes = unit == 0 ? 1000 : unit == 7 ? 3000 : 100;
  const auto kept = [&](int group, const char* counts) {
    std::vector<double> bytes;
    for (const StageCost& stage :
         partition_by_counts(units, counts, {.stages = 2, .checkpoint_group = group}).costs)
      bytes.push_back(stage.memory_bytes);
    return bytes;
  };
  using ::testing::ElementsAre;
  EXPECT_THAT(kept(0, "4,4"), ElementsAre(1000 + 300, 300 + 3000));
  EXPECT_THAT(kept(1, "4,4"), ElementsAre(1000 + 300, 300 + 3000));
  EXPECT_THAT(kept(2, "4,4"), ElementsAre(1000 + 200, 200 + 3000)) << "of three blocks";
  EXPECT_THAT(kept(2, "3,5"), ElementsAre(1000 + 100, 200 + 3000)) << "of two, and of four";
  EXPECT_THAT(kept(1 << 20, "3,5"), ElementsAre(1000 + 100, 100 + 3000)) << "contiguous";
}

TEST(Partition, WeighsActivationsByTheMicrobatchesInFlight) {
  auto units = units_of({1, 1, 1, 1}, {10, 10, 10, 10});
  for (UnitCost& unit : units) unit.activation_bytes = 100;
  const auto first_stage = [&](std::vector<int> kept) {
    return partition_units(units,
                           {.stages = 2, .memory_weight = 1, .microbatches_kept = std::move(kept)})
        .stages[0]
        .last;
  };
  EXPECT_EQ(first_stage({2, 1}), 2) << "720 beside 520 bytes; 360 beside 780 is worse";
  EXPECT_EQ(first_stage({4, 1}), 1) << "560 beside 780 bytes; 1120 beside 520 is worse";
}

// The shares add up to one whichever costs of the units are known, and for every partition.
TEST(Partition, SharesAddUpToOne) {
  const auto sum_of = [](const std::vector<UnitCost>& units, double weight) {
    double sum = 0;
    for (const double share : shares_of(partition_units(
             units, {.stages = 3, .memory_weight = weight, .microbatches_kept = {3, 2, 1}})))
      sum += share;
    return sum;
  };
  for (const double weight : {0.0, 0.2, 1.0}) {
    auto units = units_of({3, 1, 4, 1, 5, 9}, {2, 6, 5, 3, 5, 8});
    for (UnitCost& unit : units) unit.activation_bytes = 50;
    EXPECT_NEAR(sum_of(units, weight), 1, 1e-12);
    EXPECT_NEAR(sum_of(units_of({3, 1, 4, 1, 5, 9}), weight), 1, 1e-12) << "no memory is known";
    EXPECT_NEAR(sum_of(units_of({0, 0, 0, 0}, {1, 2, 3, 4}), weight), 1, 1e-12) << "no time is";
  }
}

TEST(Partition, HoldsTiedWeightsOnceAStage) {
  auto units = units_of({1, 1, 1});
  units[0].parameters = {{0, 500}};
  units[1].parameters = {{1, 10}};
  units[2].parameters = {{0, 500}, {2, 3}};
  const Partition one = partition_units(units, {.stages = 1});
  EXPECT_EQ(one.costs[0].parameters, 513);
  const Partition two = partition_by_counts(units, "2,1", {.stages = 2});
  EXPECT_EQ(two.costs[0].parameters, 510);
  EXPECT_EQ(two.costs[1].parameters, 503);
}

TEST(Partition, ByHandIsUsedAsGiven) {
  const auto units = units_of({1, 1, 1, 1, 1});
  const PartitionOptions three{.stages = 3};
  EXPECT_EQ(partition_by_counts(units, "3,1,1", three).stages,
            (std::vector<UnitRange>{{0, 3}, {3, 4}, {4, 5}}));
  EXPECT_EQ(partition_by_assignment(units, {{"u2", 1}, {"u3", 1}, {"u4", 2}}, 0, three).stages,
            (std::vector<UnitRange>{{0, 2}, {2, 4}, {4, 5}}));

  EXPECT_THAT(
      error_text([&] { partition_units(units, {.stages = 6}); }),
      AllOf(HasSubstr("a model of 5 units"), HasSubstr("into 6 stages"), HasSubstr("at most 5")));
  EXPECT_THAT(error_text([&] { partition_units(units, {.stages = 2, .memory_weight = 1.5}); }),
              HasSubstr("memory_weight is 1.5"));
  EXPECT_THAT(error_text([&] { partition_by_counts(units, "3,x,1", three); }),
              HasSubstr("'x' in the partition '3,x,1'"));
  EXPECT_THAT(error_text([&] { partition_by_counts(units, "3,1", three); }),
              HasSubstr("4 units on 2 stages, the model 5 units on 3 stages"));
  EXPECT_THAT(error_text([&] { partition_by_assignment(units, {{"u1", 1}, {"u3", 2}}, 0, three); }),
              AllOf(HasSubstr("unit 'u2' is on partition 0"), HasSubstr("before it is on 1")));
  EXPECT_THAT(error_text([&] { partition_by_assignment(units, {{"u4", 1}}, 0, three); }),
              HasSubstr("partition 2 has no units"));
  EXPECT_THAT(error_text([&] { partition_by_assignment(units, {{"u4", 3}}, 0, three); }),
              HasSubstr("partition 3 of 3"));
  EXPECT_THAT(error_text([&] { partition_by_assignment(units, {{"v4", 1}}, 0, three); }),
              HasSubstr("did you mean u4?"));
}

// Measured times decide where they differ from parameter counts. Differences as small as those
// between runs do not.
TEST(Partition, MeasuredTimesCutSteadily) {
  const auto counts = [](const std::vector<double>& seconds) {
    std::vector<UnitCost> units = units_of(seconds);
    for (UnitCost& unit : units) unit.work = 1;
    std::string text;
    for (const UnitRange& stage : partition_units(units, {.stages = 2, .memory_weight = 0}).stages)
      text += fmt::format("{} ", stage.last - stage.first);
    return text;
  };
  EXPECT_EQ(counts({0, 0, 0, 0, 0, 0}), "3 3 ");
  EXPECT_EQ(counts({1, 1, 1, 1, 1, 1.5}), "3 3 ");  // no partition is better
  EXPECT_EQ(counts({1, 1, 1, 0.96, 1.02, 0.9}), "3 3 ");
  EXPECT_EQ(counts({1, 1, 0.1, 0.65, 0.65, 0.65}), "3 3 ");  // 2 4 is 2 % better
  EXPECT_EQ(counts({1, 1, 1, 1, 1, 4.5}), "5 1 ");
}

TEST(Partition, IsShownAsATable) {
  auto units = units_of({0.001, 0.002, 0.003}, {10, 2'000'000, 30});
  units[1].activation_bytes = 5'000'000;
  const std::string table =
      partition_table(partition_by_counts(units, "2,1", {.stages = 2, .memory_weight = 0}), units,
                      std::vector<int>{0, 1});
  units[1].seconds = units[0].seconds = units[2].seconds = 0;
  EXPECT_THAT(partition_table(partition_by_counts(units, "3", {}), units, std::vector<int>{0}),
              HasSubstr("  - "));
  EXPECT_THAT(table, AllOf(HasSubstr("u0 to u1"), HasSubstr("2000010"), HasSubstr("37.0 MB"),
                           HasSubstr("in flight"), HasSubstr("3.00 ms"), HasSubstr("50.0%")));
}

TEST(MeasureUnits, GivesEveryRankTheSameAndHoldsOneUnitAtATime) {
  nn::DecoderConfig config = nn::DecoderConfig::of("gpt2");
  config.vocab_size = 61;
  config.max_position_embeddings = 24;
  config.hidden_size = 48;
  config.num_hidden_layers = 4;
  config.num_attention_heads = 3;
  std::vector<std::vector<UnitCost>> all(2), checkpointed(2), offloaded(2);
  test::run_thread_ranks(2, [&](const World& world, Store& store) {
    const auto group = testing::make_test_communicator(world, store);
    nn::Fixture room;
    nn::CausalLm model(config);
    const Tensor ids = Tensor::zeros({2, 16}, DType::i32, room.memory, MemoryTag::data);
    const Microbatch batch{.input = {ids, ids, {}, {}}};
    room.memory.reset_peaks();
    all[static_cast<std::size_t>(world.rank)] =
        measure_units(room.context, model, batch, *group, {});
    for (const nn::Parameter* parameter : model.parameters())
      EXPECT_FALSE(parameter->value.defined() || parameter->gradient.defined());
    if (world.rank == 0) {
      std::int64_t block = 0;
      for (const nn::Parameter* parameter : model.unit_parameters(1))
        block += parameter->shape().count() * 4;
      EXPECT_EQ(room.memory.usage(MemoryTag::parameters).peak, block);
    }
    checkpointed[static_cast<std::size_t>(world.rank)] =
        measure_units(room.context, model, batch, *group,
                      {.stage = {.checkpoint_group = 1}, .split_backward = true});
    offloaded[static_cast<std::size_t>(world.rank)] =
        measure_units(room.context, model, batch, *group,
                      {.stage = {.checkpoint_group = 1},
                       .split_backward = true,
                       .offload = OffloadOptions{.min_bytes = 1}});
  });
  ASSERT_EQ(all[0].size(), 6U);
  for (std::size_t unit = 0; unit < 6; ++unit) {
    EXPECT_EQ(all[0][unit].seconds, all[1][unit].seconds);
    EXPECT_EQ(all[0][unit].activation_bytes, all[1][unit].activation_bytes);
    EXPECT_EQ(all[0][unit].parameters, all[1][unit].parameters);
    EXPECT_GT(all[0][unit].seconds, 0);
  }
  EXPECT_EQ(all[0][1].seconds, all[0][4].seconds) << "blocks are alike: one is measured";
  EXPECT_NE(all[0][1].seconds, all[0][5].seconds);
  EXPECT_THAT(unit_times(all[0]), AllOf(HasSubstr("h.0 to h.3 "), HasSubstr(" ms each, head ")));
  EXPECT_EQ(all[0][0].parameters.count(0) + all[0][5].parameters.count(0), 2U) << "the tied table";
  // A block keeps more than its input [2, 16, 48]. The embeddings are a sum of two rows.
  EXPECT_GT(all[0][2].activation_bytes, 5 * 2 * 16 * 48 * 4);
  EXPECT_LT(all[0][0].activation_bytes, all[0][2].activation_bytes);
  EXPECT_EQ(checkpointed[0][2].activation_bytes, 2 * 16 * 48 * 4) << "its input";
  EXPECT_EQ(offloaded[0][2].activation_bytes, 0) << "its input has left";
  EXPECT_EQ(offloaded[0][2].peak_bytes, offloaded[1][2].peak_bytes);
  EXPECT_EQ(offloaded[0][2].peak_bytes, checkpointed[0][2].peak_bytes)
      << "nothing leaves meanwhile";
  // While a block computes, it has the memory that it would keep, also when it is recomputed. With
  // a split backward, weight gradients keep some of it longer.
  EXPECT_GT(all[0][2].peak_bytes, all[0][2].activation_bytes);
  EXPECT_GT(checkpointed[0][2].peak_bytes, all[0][2].activation_bytes);
  EXPECT_EQ(all[0][2].weight_bytes, 0) << "not asked for";
  EXPECT_GT(offloaded[0][2].weight_bytes, 2 * 16 * 48 * 4);
}

}  // namespace
}  // namespace shoal::parallel
