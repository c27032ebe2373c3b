// DistributedOptimizer on layouts: 16-bit types, loss scales, the contents of a checkpoint.
#include <cmath>
#include <cstdio>
#include <mutex>

#include "rig.h"
#include "support/error_text.h"
#include <fmt/format.h>

#include "shoal/collectives/communicator_options.h"

namespace shoal::parallel {
namespace {

TEST(SixteenBits, TrainAsOneRankDoes) {
  struct Case {
    DType dtype;
    double loss, norm;  // tolerances
  };
  for (const Case c : {Case{DType::bf16, 1e-3, 2e-2}, Case{DType::f16, 2e-4, 5e-3}}) {
    const Trained& want = one_rank(c.dtype);
    EXPECT_LT(want.losses.back(), want.losses.front() - 0.2) << "it learns";
    const Layout layout{.rdp = 2, .pp = 2, .microbatches = 4, .sharding = 3, .dtype = c.dtype};
    const Trained got = trained(layout);
    const Difference found = difference(got, want);
    EXPECT_LT(found.loss, c.loss);
    EXPECT_LT(found.norm, c.norm);
    EXPECT_EQ(got.skipped, want.skipped);
    expect_one_writer(got.state, want.state);
    std::printf("%s: losses %.1e, norms %.1e, %td skipped\n", layout.text().c_str(), found.loss,
                found.norm, std::ranges::count(got.skipped, true));
    // At 2^26 f16 overflows at first. bf16 has no loss scale.
    EXPECT_EQ(std::ranges::count(want.skipped, true) > 0, c.dtype == DType::f16);
  }
}

// Tensor parallelism rounds sums at other points, and Adam amplifies small differences. So
// gradients are compared where both have the same weights.
TEST(SixteenBits, HaveOneRanksGradientsUnderTensorParallelism) {
  struct Case {
    DType dtype;
    double gradient;  // tolerance: bf16 rounds by 8e-3, f16 by 1e-3
  };
  for (const Case c : {Case{DType::bf16, 1.6e-2}, Case{DType::f16, 2e-3}}) {
    const Whole& start = one_rank(c.dtype).state;
    const Trained want = trained({.dtype = c.dtype}, kSteps, kSteps + 1, &start);
    const Trained exact = trained({}, kSteps, kSteps + 1, &start);
    EXPECT_NEAR(want.norms[0], exact.norms[0], c.gradient * exact.norms[0]) << "not scaled";
    for (const Layout& layout :
         {Layout{.rdp = 2, .tp = 2, .sharding = 1, .dtype = c.dtype},
          Layout{.rdp = 2, .tp = 2, .prescaled = true, .sharding = 3, .dtype = c.dtype}}) {
      const Trained got = trained(layout, kSteps, kSteps + 1, &start);
      EXPECT_FALSE(got.skipped.front());
      EXPECT_LT(difference(got, want).gradient, c.gradient) << layout.text();
      EXPECT_NEAR(got.losses[0], want.losses[0], 1e-4 * want.losses[0]) << layout.text();
    }
  }
}

// The state from state_runs() is complete: another layout can continue from it.
TEST(DistributedOptimizer, ContinuesOnAnotherLayout) {
  const Layout whole{.pp = 2, .tp = 2, .microbatches = 4};
  const Layout sharded{.rdp = 2, .pp = 2, .microbatches = 4, .sharding = 3};
  const Layout both{.rdp = 2, .tp = 2, .prescaled = true, .sharding = 1};
  constexpr int kHalf = 3;
  const Trained& want = one_rank();
  for (const auto& [first, second] : {std::pair{whole, sharded}, {sharded, both}, {both, whole}}) {
    SCOPED_TRACE(first.text() + " -> " + second.text());
    const Trained before = trained(first, 0, kHalf);
    const Trained after = trained(second, kHalf, 2 * kHalf, &before.state);
    for (int step = kHalf; step < 2 * kHalf; ++step) {
      const double loss = want.losses[static_cast<std::size_t>(step)];
      EXPECT_NEAR(after.losses[static_cast<std::size_t>(step - kHalf)], loss, 2e-5 * loss) << step;
    }
  }
}

// Given weights, parameter by parameter and part by part.
TEST(ParallelModel, StartsFromGivenWeights) {
  const auto number = [](std::size_t place) { return 1e-4f * static_cast<float>(place) + 0.1f; };
  for (const Layout& layout :
       {Layout{.pp = 2, .tp = 2, .dtype = DType::bf16},
        Layout{.rdp = 2, .pp = 2, .tp = 2, .sharding = 3, .dtype = DType::bf16},
        Layout{.rdp = 4, .sharding = 2, .degree = 2}}) {
    SCOPED_TRACE(layout.text());
    Whole state;
    std::mutex mutex;
    test::run_thread_ranks(layout.ranks(), [&](const World& world, Store& store) {
      const auto group = testing::make_test_communicator(world, store);
      ProcessMesh mesh(*group, {layout.rdp, layout.pp, layout.tp}, Placement(layout.placement));
      Rank rank;
      nn::CausalLm gpt2(tiny());
      std::size_t filled = 0;
      ParallelOptions options = options_of(layout);
      options.fill = [&](nn::Parameter& parameter) {
        parameter.value = rank.context.empty(parameter.shape(), DType::f32, MemoryTag::parameters);
        const std::vector<std::size_t> places = places_of(parameter);
        std::vector<float> values(places.size());
        std::ranges::transform(places, values.begin(), number);
        testing::set_values(parameter.value, values);
        ++filled;
      };
      ParallelModel model(rank.context, gpt2, mesh, options);
      EXPECT_EQ(filled, model.parameters().size());
      const DistributedOptimizer optimizer(model, nn::sgd());
      {
        const std::scoped_lock lock(mutex);
        for (const StateRun& run : optimizer.state_runs())
          if (run.writes) collect(run, state);
      }
      group->barrier()->wait();
    });
    expect_one_writer(state, one_rank().first);
    for (const auto& [name, values] : state.values)
      for (std::size_t i = 0; i < values.size(); ++i)
        ASSERT_EQ(values[i], static_cast<double>(number(i))) << name << " " << i;
  }
}

// Two ranks cannot divide this vocabulary evenly. One more row would move the partition.
TEST(ParallelModel, TensorParallelRanksAreCutAlike) {
  nn::DecoderConfig config = tiny({.heads = 2});
  config.vocab_size = 141;
  config.num_hidden_layers = 4;
  std::mutex mutex;
  std::map<int, std::vector<std::string>> plans;  // by tp rank
  test::run_thread_ranks(4, [&](const World& world, Store& store) {
    const auto group = testing::make_test_communicator(world, store);
    ProcessMesh mesh(*group, {1, 2, 2}, Placement());
    Rank rank;
    nn::CausalLm gpt2(config);
    const ParallelModel model(rank.context, gpt2, mesh, options_of({.pp = 2, .tp = 2}));
    group->barrier()->wait();
    const std::scoped_lock lock(mutex);
    plans[mesh.place().tp].push_back(model.describe());
  });
  EXPECT_EQ(plans[0], plans[1]);
}

TEST(ParallelModel, APlanKnowsWhatIsSharded) {
  const auto bytes_per_parameter = [](Layout layout) {
    double found = 0;
    layout.rdp = layout.pp = 2;
    test::run_thread_ranks(4, [&](const World& world, Store& store) {
      const auto group = testing::make_test_communicator(world, store);
      ProcessMesh mesh(*group, {2, 2, 1}, Placement());
      Rank rank;
      nn::CausalLm gpt2(tiny());
      const ParallelModel model(rank.context, gpt2, mesh, options_of(layout));
      const StageCost& stage = model.partition().costs[0];
      if (world.rank == 0) found = stage.memory_bytes / static_cast<double>(stage.parameters);
      group->barrier()->wait();
    });
    return found;
  };
  EXPECT_EQ(bytes_per_parameter({}), 4 + 4 + 8);
  EXPECT_EQ(bytes_per_parameter({.sharding = 2}), 4 + 4 / 2 + 8 / 2);
  EXPECT_EQ(bytes_per_parameter({.sharding = 2, .degree = 1}), 4 + 4 + 8) << "a copy on each";
  EXPECT_EQ(bytes_per_parameter({.sharding = 3, .dtype = DType::bf16}), (2 + 4 + 12) / 2);
}

TEST(ParallelModel, WithoutTrainingThereAreNoGradients) {
  for (int level = 0; level <= 3; ++level) {
    const Layout layout{.rdp = 2, .pp = 2, .sharding = level};
    SCOPED_TRACE(layout.text());
    test::run_thread_ranks(layout.ranks(), [&](const World& world, Store& store) {
      testing::use_device_of(world.rank);
      Rank rank;
      collectives::CommunicatorOptions how;
      how.counted_by = &rank.memory;
      const auto group = testing::make_test_communicator(world, store, how);
      ProcessMesh mesh(*group, {layout.rdp, layout.pp, layout.tp}, Placement());
      nn::CausalLm gpt2(tiny());
      ParallelModel model(rank.context, gpt2, mesh, options_of(layout));
      const int rows = kRows / layout.rdp;
      const std::vector<Microbatch> batch{
          {{rank.rows(0, 0, rows, false), rank.rows(0, 0, rows, true), {}, {}}, 0}};
      const std::int64_t parameters = rank.memory.usage(MemoryTag::parameters).current;
      const double untrained = model.evaluate(batch).sum;
      EXPECT_EQ(rank.memory.usage(MemoryTag::parameters).current, parameters) << "units' values";
      EXPECT_FALSE(model.owned().empty());  // a checkpoint is read into it
      EXPECT_EQ(rank.memory.usage(MemoryTag::gradients).peak, 0);
      EXPECT_EQ(rank.memory.usage(MemoryTag::optimizer).peak, 0);
      EXPECT_EQ(model.train(batch).targets, model.evaluate(batch).targets);
      EXPECT_EQ(model.evaluate(batch).sum, untrained);
      EXPECT_GT(rank.memory.usage(MemoryTag::gradients).peak, 0);
      group->barrier()->wait();
    });
  }
}

TEST(ParallelModel, TheModeIsRestoredIfEvaluationFails) {
  const auto said = test::thread_rank_errors(1, [&](const World& world, Store& store) {
    const auto group = testing::make_test_communicator(world, store);
    ProcessMesh mesh(*group, {1, 1, 1}, Placement("cluster"));
    Rank rank;
    nn::CausalLm gpt2(tiny());
    ParallelModel model(rank.context, gpt2, mesh, options_of({}));
    rank.context.mode = nn::Mode::train;
    EXPECT_THAT(test::error_text([&] { model.evaluate({}); }),
                ::testing::HasSubstr("0 microbatches are given"));
    EXPECT_EQ(rank.context.mode, nn::Mode::train);
  });
  EXPECT_THAT(said, ::testing::Each(""));
}

// Frozen parameters do not change, and one rank writes them.
TEST(FrozenParameters, TrainAsOneRankDoes) {
  const Trained want = trained({.frozen = true}, 0, 2);
  EXPECT_FALSE(want.first.values.contains("transformer.wpe.weight"));
  for (Layout layout : {Layout{.rdp = 2, .pp = 2, .microbatches = 2},
                        Layout{.rdp = 2, .tp = 2, .prescaled = true, .sharding = 3},
                        Layout{.pp = 2, .tp = 2, .microbatches = 2}}) {
    layout.frozen = true;
    SCOPED_TRACE(layout.text());
    const Trained got = trained(layout, 0, 2);
    EXPECT_LT(difference(got, want).loss, 2e-5);
    EXPECT_LT(difference(got, want).gradient, 1e-5);
    expect_one_writer(got.state, want.state);
  }
}

// The place of masters and moments changes no bit.
TEST(MastersElsewhere, AreTheSame) {
  for (Layout layout :
       {Layout{.rdp = 2}, Layout{.rdp = 2, .sharding = 1}, Layout{.rdp = 2, .sharding = 3},
        Layout{.rdp = 4, .sharding = 2, .degree = 2},
        Layout{.rdp = 2, .sharding = 2, .rule = Rule::lamb},
        Layout{.rdp = 2, .sharding = 2, .rule = Rule::adafactor},
        Layout{.rdp = 2, .pp = 2, .tp = 2, .microbatches = 2, .prescaled = true, .sharding = 3}}) {
    for (const DType dtype : {DType::f32, DType::bf16}) {
      layout.dtype = dtype;
      layout.apart = false;
      const Trained want = trained(layout, 0, 3);
      layout.apart = true;
      SCOPED_TRACE(layout.text());
      const Trained got = trained(layout, 0, 3);
      EXPECT_EQ(got.losses, want.losses);
      EXPECT_EQ(got.norms, want.norms);
      EXPECT_EQ(got.state.values, want.state.values);
      expect_one_writer(got.state, want.state);
    }
  }
}

// With two ranks, sums have the same bits in any order, and so do all updates. Only an element's
// position in the model decides how it is rounded.
TEST(StochasticRounding, ShardsRoundLikeTheWhole) {
  for (const Rule rule : {Rule::adamw, Rule::lamb, Rule::adafactor}) {
    Layout layout{.rdp = 2, .dtype = DType::bf16, .rule = rule, .rounded = true};
    const Trained want = trained(layout, 0, 4);
    for (const int level : {1, 2, 3}) {
      layout.sharding = level;
      SCOPED_TRACE(layout.text());
      const Trained got = trained(layout, 0, 4);
      if (rule == Rule::adamw) {
        EXPECT_EQ(got.losses, want.losses);
        for (const auto& [name, values] : want.state.values)
          EXPECT_EQ(got.state.values.at(name), values) << name;
      } else {
        EXPECT_LT(difference(got, want).loss, 5e-3);  // their sums are added part by part
      }
      expect_one_writer(got.state, want.state);
    }
  }
}

TEST(StochasticRounding, PartsKnowTheirPositions) {
  for (Layout layout :
       {Layout{.tp = 2}, Layout{.tp = 2, .prescaled = true},
        Layout{.tp = 2, .prescaled = true, .speed = true},
        Layout{.rdp = 2, .pp = 2, .tp = 2, .microbatches = 2, .prescaled = true, .sharding = 3},
        Layout{.task = {.model = Model::bert}, .tp = 2, .prescaled = true},
        Layout{.task = {.model = Model::llama}, .tp = 2, .prescaled = true}}) {
    layout.dtype = DType::bf16;
    layout.rounded = true;
    SCOPED_TRACE(layout.text());
    const Trained got = trained(layout, 0, 2);
    for (const double loss : got.losses) EXPECT_TRUE(std::isfinite(loss));
  }
}

class SumsOfWholeParameters : public ::testing::TestWithParam<Layout> {};

// LAMB's trust ratios and Adafactor's means are those of whole parameters, however the layout
// divides a parameter.
TEST_P(SumsOfWholeParameters, TrainAsOneRankDoes) {
  constexpr int kFew = 6;
  for (const Rule rule : {Rule::lamb, Rule::adafactor}) {
    Layout layout = GetParam();
    layout.rule = rule;
    SCOPED_TRACE(layout.text());
    const Trained want = trained({.task = layout.task, .rule = rule}, 0, kFew);
    EXPECT_LT(want.losses.back(), want.losses.front()) << "it learns";
    const Trained got = trained(layout, 0, kFew);
    const Difference found = difference(got, want);
    // Adafactor moves a bias by the sign of its gradient, which may be 0 but for rounding. So what
    // a unit in the last place of the weights changes is measured.
    Difference ulp;
    if (rule == Rule::adafactor)
      ulp = difference(trained({.task = layout.task, .rule = rule, .disturbed = true}, 0, kFew),
                       want);
    EXPECT_LT(found.loss, std::clamp(10 * ulp.loss, 2e-5, 2e-4));
    EXPECT_LT(found.norm, std::clamp(10 * ulp.norm, 2e-4, 2e-3));
    expect_one_writer(got.state, want.state);
    std::printf("%s: losses %.1e, norms %.1e; of a unit in the last place %.1e, %.1e\n",
                layout.text().c_str(), found.loss, found.norm, ulp.loss, ulp.norm);
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, SumsOfWholeParameters,
    ::testing::Values(
        Layout{.rdp = 2}, Layout{.tp = 2}, Layout{.tp = 2, .prescaled = true},
        Layout{.rdp = 2, .sharding = 1},
        Layout{.rdp = 2, .pp = 2, .microbatches = 2, .sharding = 2},
        Layout{.rdp = 4, .sharding = 3, .degree = 2},
        Layout{.rdp = 2, .sharding = 1, .degree = 1},  // one rank has all parts
        Layout{.rdp = 2, .pp = 2, .tp = 2, .microbatches = 2, .prescaled = true, .sharding = 3}));

// The distance between all weights together, relative to their norm.
double apart(const Whole& got, const Whole& want) {
  double whole = 0, apart = 0;
  for (const auto& [name, values] : want.values) {
    if (name.find('/') != std::string::npos) continue;  // a moment
    for (std::size_t i = 0; i < values.size(); ++i) {
      whole += values[i] * values[i];
      apart += (got.values.at(name)[i] - values[i]) * (got.values.at(name)[i] - values[i]);
    }
  }
  return std::sqrt(apart / whole);
}

// The weights depend on the tensors that the ratios are taken of.
TEST(Lamb, RatiosOfPartsGiveOtherWeights) {
  constexpr int kFew = 3;
  const Trained want = trained({.rule = Rule::lamb}, 0, kFew);
  for (Layout layout : {Layout{.tp = 2}, Layout{.rdp = 2, .sharding = 1}}) {
    layout.rule = Rule::lamb;
    const double right = apart(trained(layout, 0, kFew).state, want.state);
    layout.rule = Rule::lamb_of_parts;
    const double wrong = apart(trained(layout, 0, kFew).state, want.state);
    EXPECT_GT(wrong, 10 * right) << layout.text();
    std::printf("%s: %.1e, with all parts %.1e\n", layout.text().c_str(), wrong, right);
  }
}

// The element counts of the parts add up to that of the whole parameter. No part counts
// twice or not at all.
TEST(ModelSums, CountEachPartOnce) {
  for (const Layout& layout :
       {Layout{.rdp = 2, .pp = 2, .tp = 2}, Layout{.rdp = 4, .sharding = 2, .degree = 2},
        Layout{.rdp = 2, .pp = 2, .tp = 2, .prescaled = true, .sharding = 3}}) {
    SCOPED_TRACE(layout.text());
    test::run_thread_ranks(layout.ranks(), [&](const World& world, Store& store) {
      const auto group = testing::make_test_communicator(world, store);
      ProcessMesh mesh(*group, {layout.rdp, layout.pp, layout.tp}, Placement(layout.placement));
      Rank rank;
      nn::CausalLm gpt2(tiny());
      ParallelModel model(rank.context, gpt2, mesh, options_of(layout));
      const std::vector<OwnedRun> runs = model.owned();
      // As many sums as the parameter has dimensions.
      std::vector<std::vector<double>> counts;
      for (const OwnedRun& run : runs)
        counts.emplace_back(static_cast<std::size_t>(run.parameter->whole_shape().rank()),
                            static_cast<double>(run.segment.master.count()));
      const std::vector<std::span<double>> sums(counts.begin(), counts.end());
      ModelSums(model).sum_over_parts(sums, [](const Shape& whole) { return whole.rank(); });
      for (std::size_t i = 0; i < runs.size(); ++i) {
        const auto whole = static_cast<double>(runs[i].parameter->whole_shape().count());
        EXPECT_THAT(counts[i], ::testing::Each(whole)) << runs[i].parameter->name();
      }
      group->barrier()->wait();
    });
  }
}

TEST(SumsOverParts, GiveTheSameBitsTwice) {
  for (const Rule rule : {Rule::lamb, Rule::adafactor}) {
    const Layout layout{
        .rdp = 4, .tp = 2, .prescaled = true, .sharding = 3, .degree = 2, .rule = rule};
    const Trained first = trained(layout, 0, 2), second = trained(layout, 0, 2);
    EXPECT_EQ(first.state.values, second.state.values);
    EXPECT_EQ(first.losses, second.losses);
  }
}

TEST(Adafactor, KeepsMeansOfRowsAndColumns) {
  const Trained trained_once = trained({.rule = Rule::adafactor}, 0, 2);
  const std::map<std::string, std::vector<double>>& state = trained_once.state.values;
  const std::string matrix = "transformer.h.0.mlp.c_fc.weight",
                    vector = "transformer.h.0.ln_1.bias";
  const std::size_t rows = state.at("exp_avg_sq_row/" + matrix).size(),
                    columns = state.at("exp_avg_sq_col/" + matrix).size();
  EXPECT_EQ(rows * columns, state.at(matrix).size());
  EXPECT_EQ(columns, 4 * rows);
  EXPECT_EQ(state.at("exp_avg_sq/" + vector).size(), state.at(vector).size());
  EXPECT_FALSE(state.contains("exp_avg_sq/" + matrix));
  EXPECT_FALSE(state.contains("exp_avg_sq_row/" + vector));
}

// Means of rows and columns go from layout to layout as everything else.
TEST(Adafactor, ContinuesOnAnotherLayout) {
  const Trained want = trained({.rule = Rule::adafactor}, 0, 6);
  const Layout whole{.pp = 2, .tp = 2, .microbatches = 4, .rule = Rule::adafactor};
  const Layout sharded{
      .rdp = 2, .pp = 2, .microbatches = 4, .sharding = 3, .rule = Rule::adafactor};
  for (const auto& [first, second] : {std::pair{whole, sharded}, {sharded, whole}}) {
    SCOPED_TRACE(first.text() + " -> " + second.text());
    const Trained before = trained(first, 0, 3);
    const Trained after = trained(second, 3, 6, &before.state);
    for (std::size_t step = 3; step < 6; ++step)
      EXPECT_NEAR(after.losses[step - 3], want.losses[step], 2e-5 * want.losses[step]) << step;
  }
}

}  // namespace
}  // namespace shoal::parallel
