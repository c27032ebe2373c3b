#include <cmath>
#include <fstream>
#include <limits>

#include "support/device.h"
#include "support/golden.h"
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "shoal/nn/optim/loss_scaler.h"
#include "shoal/nn/optim/master_weights.h"
#include "shoal/nn/optim/optimizer.h"
#include "shoal/nn/optim/schedule.h"
#include "shoal/runtime/base/error.h"
#include "shoal/runtime/io/safetensors.h"

namespace shoal::nn {
namespace {

nlohmann::json golden_json(const std::string& name) {
  std::ifstream file(testing::golden_path(name));
  return nlohmann::json::parse(file);
}

TEST(Schedule, EqualsTransformers) {
  const nlohmann::json curves = golden_json("schedules.json");
  ASSERT_GT(curves.size(), 10u);
  for (const nlohmann::json& curve : curves) {
    const Schedule schedule(curve["schedule"].get<std::string>(), curve["base_learning_rate"],
                            curve["warmup_steps"], curve["total_steps"], curve["options"]);
    const auto expected = curve["learning_rates"].get<std::vector<double>>();
    for (std::size_t step = 0; step < expected.size(); ++step)
      EXPECT_NEAR(schedule.learning_rate(static_cast<std::int64_t>(step)), expected[step], 1e-15)
          << curve["schedule"] << " " << curve["options"] << " step " << step;
  }
}

TEST(Schedule, RefusesWhatItDoesNotKnow) {
  const nlohmann::json none = nlohmann::json::object();
  EXPECT_THROW(Schedule("linaer", 1, 0, 10, none), Error);
  EXPECT_THROW(Schedule("linear", 1, 0, 10, {{"power", 2}}), Error);
  EXPECT_THROW(Schedule("polynomial", 1e-8, 0, 10, none), Error);
  EXPECT_THROW(Schedule("warmup_stable_decay", 1, 0, 10, none), Error);
  EXPECT_THROW(Schedule("warmup_stable_decay", 1, 8, 10, {{"num_decay_steps", 5}}), Error);
  EXPECT_THROW(Schedule("cosine_with_min_lr", 1, 0, 10, none), Error);
  EXPECT_THROW(Schedule("cosine_with_min_lr", 0, 0, 10, {{"min_lr", 0.0}}), Error);  // 0 / 0
}

class Optimizers : public ::testing::Test {
 protected:
  std::unique_ptr<MemoryResource> memory = testing::make_test_memory();
  std::unique_ptr<kernels::Kernels> kernels = testing::make_test_kernels(0);

  Tensor tensor(ConstView source, const Shape& shape) {
    Tensor made = Tensor::empty(shape, DType::f32, *memory, MemoryTag::parameters);
    std::copy_n(source.as<float>(), made.count(), made.data<float>());
    return made;
  }

  static std::unique_ptr<UpdateRule> make(const nlohmann::json& rule) {
    const auto adam = [&] {
      return AdamWOptions{rule["betas"][0], rule["betas"][1], rule["epsilon"],
                          rule["weight_decay"]};
    };
    if (rule["rule"] == "adamw") return adamw(adam());
    if (rule["rule"] == "lion")
      return lion({rule["betas"][0], rule["betas"][1], rule["weight_decay"]});
    if (rule["rule"] == "adafactor") return adafactor({.weight_decay = rule["weight_decay"]});
    if (rule["rule"] == "lamb") return lamb({adam(), rule["max_trust_ratio"]});
    return sgd({rule["momentum"], rule["dampening"], rule["weight_decay"], rule["nesterov"]});
  }
};

TEST_F(Optimizers, KeepTheirStatesInTheGivenMemory) {
  CountingMemory here(*memory), there(*memory);
  const Tensor numbers = Tensor::zeros({100}, DType::f32, *memory, MemoryTag::parameters);
  const std::vector<Segment> segments = {
      {.name = "x", .master = numbers.narrowed(0, 0, 40), .gradient = numbers.narrowed(0, 0, 40)},
      {.name = "y",
       .master = numbers.narrowed(0, 40, 60),
       .gradient = numbers.narrowed(0, 40, 60)}};
  const auto states = [&] { return there.usage(MemoryTag::optimizer).current; };
  Optimizer adamw(*kernels, here, segments, nn::adamw(), &there);
  EXPECT_EQ(states(), 2 * 4 * (48 + 64)) << "two moments, each on cache lines";
  EXPECT_EQ(here.usage(MemoryTag::optimizer).current, 0);
  Optimizer sgd(*kernels, here, segments, nn::sgd({.momentum = 0.9}), &there);
  EXPECT_EQ(states(), 3 * 4 * (48 + 64));
  EXPECT_EQ(here.usage(MemoryTag::optimizer).current, 0);
  Optimizer lamb(*kernels, here, segments, nn::lamb(), &there);
  EXPECT_EQ(states(), 5 * 4 * (48 + 64));
  Optimizer lion(*kernels, here, segments, nn::lion(), &there);
  EXPECT_EQ(states(), 6 * 4 * (48 + 64)) << "Lion has one moment";
  std::vector<Segment> matrices = segments;
  matrices[1].master = matrices[1].gradient = segments[1].master.reshaped({3, 20});
  Optimizer adafactor(*kernels, here, matrices, nn::adafactor(), &there);
  EXPECT_EQ(states(), 4 * (6 * (48 + 64) + 48 + 16 + 32)) << "a vector, 3 rows and 20 columns";
  EXPECT_EQ(here.usage(MemoryTag::optimizer).current, 0) << "the update left no allocation";
}

TEST_F(Optimizers, FollowTheGoldenTrajectories) {
  const nlohmann::json golden = golden_json("optim.json");
  const auto file = SafetensorsFile::open(testing::golden_path("optim.safetensors"));
  for (const auto& [name, rule] : golden["cases"].items()) {
    std::vector<Segment> segments;
    for (const std::string tensor_name : rule["tensors"]) {
      const Tensor rows = file->tensor(name + "." + tensor_name);  // [steps + 1, n]
      const auto sizes = golden["shapes"][tensor_name].get<std::vector<std::int64_t>>();
      const Shape shape{std::span<const std::int64_t>(sizes)};
      Segment segment{.name = tensor_name, .master = tensor(rows.narrowed(0, 0, 1), shape)};
      segment.gradient = Tensor::zeros(shape, DType::f32, *memory, MemoryTag::gradients);
      segments.push_back(segment);
    }
    Optimizer optimizer(*kernels, *memory, segments, make(rule));
    const testing::Reachable<kernels::StepState> reachable_state;
    kernels::StepState& state = *reachable_state;
    for (int step = 0; step < golden["steps"]; ++step) {
      for (const Segment& segment : segments) {
        const Tensor rows = file->tensor("gradient." + segment.name);
        std::copy_n(rows.narrowed(0, step, 1).const_data<float>(), segment.gradient.count(),
                    segment.gradient.data<float>());
      }
      optimizer.step(state, {.learning_rate = golden["learning_rates"][static_cast<size_t>(step)]});
      for (const Segment& segment : segments) {
        const Tensor rows = file->tensor(name + "." + segment.name);
        EXPECT_TRUE(testing::close_in_norm(
            name + "." + segment.name, segment.master,
            rows.narrowed(0, step + 1, 1).reshaped(segment.master.shape()), 2e-6, 1e-4))
            << "step " << step;
      }
    }
  }
}

TEST_F(Optimizers, ClipByTheGlobalNormAndSkipWhatIsNotFinite) {
  std::vector<Segment> segments;
  for (const char* name : {"a", "b"}) {
    Segment segment{.name = name,
                    .master = Tensor::zeros({3}, DType::f32, *memory, MemoryTag::parameters),
                    .gradient = Tensor::zeros({3}, DType::f32, *memory, MemoryTag::gradients)};
    std::fill_n(segment.gradient.data<float>(), 3, 2.0f);
    segments.push_back(segment);
  }
  Optimizer optimizer(*kernels, *memory, segments, nn::sgd());
  const testing::Reachable<kernels::StepState> reachable_state;
  kernels::StepState& state = *reachable_state;
  // The norm of six twos, scaled by a half, is sqrt(6). Clipped to 1, the update is 1 / sqrt(6).
  const StepOptions options{.learning_rate = 1, .gradient_scale = 0.5, .max_gradient_norm = 1};
  StepOutcome outcome = optimizer.step(state, options);
  EXPECT_NEAR(outcome.gradient_norm, std::sqrt(6.0), 1e-12);
  EXPECT_FALSE(outcome.skipped);
  EXPECT_EQ(state.step, 1u);
  EXPECT_NEAR(segments[1].master.const_data<float>()[2], -1 / std::sqrt(6.0), 1e-6);

  segments[1].gradient.data<float>()[0] = std::numeric_limits<float>::infinity();
  const float before = segments[0].master.const_data<float>()[0];
  outcome = optimizer.step(state, options);
  EXPECT_TRUE(outcome.skipped);
  EXPECT_EQ(state.step, 1u);
  EXPECT_EQ(segments[0].master.const_data<float>()[0], before);
}

TEST_F(Optimizers, NormIncludesOtherShards) {
  class Others final : public UpdateGroup {
    double sum_squares(double mine, double*) override { return mine + 16; }
  } others;
  Segment segment{.name = "a",
                  .master = Tensor::zeros({1}, DType::f32, *memory, MemoryTag::parameters),
                  .gradient = Tensor::zeros({1}, DType::f32, *memory, MemoryTag::gradients)};
  segment.gradient.data<float>()[0] = 3;
  Optimizer optimizer(*kernels, *memory, {segment}, nn::sgd(), nullptr, &others);
  const testing::Reachable<kernels::StepState> reachable_state;
  kernels::StepState& state = *reachable_state;
  const StepOutcome outcome = optimizer.step(state, {.learning_rate = 1});
  EXPECT_DOUBLE_EQ(outcome.gradient_norm, 5);
}

// A parameter in three parts changes like the whole one if the sums of the parts are added up.
// Without this sum the parts change differently.
TEST_F(Optimizers, SumsAreThoseOfWholeParametersThatAreInParts) {
  class Parts final : public UpdateGroup {
    bool has_parts() const override { return true; }
    void sum_over_parts(std::span<const std::span<double>> sums, const CountOf& count) override {
      std::vector<double> whole(static_cast<std::size_t>(count({5, 10})));
      for (const std::span<double> part : sums) {
        ASSERT_EQ(part.size(), whole.size());
        for (std::size_t i = 0; i < whole.size(); ++i) whole[i] += part[i];
      }
      for (const std::span<double> part : sums) std::ranges::copy(whole, part.begin());
    }
  };
  Parameter parameter("w", {5, 10}, {});
  const auto segment = [&](std::int64_t first, std::int64_t count) {
    Segment made{.name = "w",
                 .master = Tensor::empty({count}, DType::f32, *memory, MemoryTag::parameters),
                 .gradient = Tensor::empty({count}, DType::f32, *memory, MemoryTag::gradients),
                 .parameter = &parameter,
                 .first = first};
    for (std::int64_t i = 0; i < count; ++i) {
      const auto at = static_cast<float>(first + i);
      made.master.data<float>()[i] = 0.1f * at;
      made.gradient.data<float>()[i] = std::sin(at) * at;
    }
    return made;
  };
  const auto rule = [](bool is_lamb) {
    return is_lamb ? lamb({.adam = {.epsilon = 1e-2, .weight_decay = 0.1}})
                   : adafactor({.weight_decay = 0.1});
  };
  const auto moved = [&](bool is_lamb, const std::vector<Segment>& segments, bool adds) {
    Parts parts;
    Optimizer optimizer(*kernels, *memory, segments, rule(is_lamb), nullptr,
                        adds ? &parts : nullptr);
    const testing::Reachable<kernels::StepState> state;
    for (int step = 0; step < 3; ++step) optimizer.step(*state, {.learning_rate = 0.1});
    std::vector<double> all;
    for (const Segment& part : segments)
      for (std::int64_t i = 0; i < part.master.count(); ++i)
        all.push_back(static_cast<double>(part.master.const_data<float>()[i]));
    return all;
  };
  for (const bool is_lamb : {true, false}) {
    SCOPED_TRACE(is_lamb ? "LAMB" : "Adafactor");
    const auto parts = [&] { return std::vector{segment(0, 7), segment(7, 1), segment(8, 42)}; };
    const std::vector<double> want = moved(is_lamb, {segment(0, 50)}, false);
    const std::vector<double> got = moved(is_lamb, parts(), true),
                              apart = moved(is_lamb, parts(), false);
    double farthest = 0;
    for (std::size_t i = 0; i < want.size(); ++i) {
      EXPECT_NEAR(got[i], want[i], 1e-6 * (1 + std::abs(want[i]))) << i;
      farthest = std::max(farthest, std::abs(apart[i] - want[i]));
    }
    EXPECT_GT(farthest, 0.05);
  }
}

TEST_F(Optimizers, MastersKeepWhatSixteenBitsLose) {
  Parameter parameter("w", {4}, {});
  parameter.value = Tensor::zeros({4}, DType::f32, *memory, MemoryTag::parameters);
  parameter.gradient = Tensor::zeros({4}, DType::f32, *memory, MemoryTag::gradients);
  std::fill_n(parameter.value.data<float>(), 4, 1.0f);
  std::fill_n(parameter.gradient.data<float>(), 4, 1.0f);
  std::vector<Parameter*> parameters{&parameter};
  MasterWeights masters(parameters, DType::bf16, *kernels, *memory);
  EXPECT_EQ(parameter.value.dtype(), DType::bf16);
  Optimizer optimizer(*kernels, *memory, masters.segments(), nn::sgd());
  const testing::Reachable<kernels::StepState> reachable_state;
  kernels::StepState& state = *reachable_state;
  // bf16 has steps of 2^-8 below 1, so sixteen updates of 2^-12 become visible only together.
  for (int step = 0; step < 16; ++step) optimizer.step(state, {.learning_rate = 0x1p-12});
  EXPECT_EQ(masters.masters()[0].tensor.const_data<float>()[0], 1 - 0x1p-8f);
  EXPECT_EQ(static_cast<float>(parameter.value.const_data<bfloat16>()[0]), 1 - 0x1p-8f);

  masters.masters()[0].tensor.data<float>()[1] = 7;
  masters.refresh();
  EXPECT_EQ(static_cast<float>(parameter.value.const_data<bfloat16>()[1]), 7);
}

// Without masters, rounded stochastically: each update adds a 160th of the distance between
// neighbours. After 400 updates the sum is there nevertheless (five standard errors: 0.003).
TEST_F(Optimizers, StochasticRoundingKeepsItInTheMean) {
  constexpr std::int64_t kCount = 2000;
  const testing::Reachable<kernels::StepState> reachable_state;
  const auto trained = [&](bool lamb) {
    CountingMemory counted(*memory);  // before the parameter, whose bf16 value it counts
    Parameter parameter("w", {kCount}, {});
    parameter.value = Tensor::zeros({kCount}, DType::f32, *memory, MemoryTag::parameters);
    parameter.gradient = Tensor::zeros({kCount}, DType::f32, *memory, MemoryTag::gradients);
    std::fill_n(parameter.value.data<float>(), kCount, 1.0f);
    std::fill_n(parameter.gradient.data<float>(), kCount, -1.0f);
    std::vector<Parameter*> parameters{&parameter};
    MasterWeights weights(parameters, DType::bf16, *kernels, counted, {}, nullptr, 3);
    EXPECT_EQ(counted.usage(MemoryTag::optimizer).current, 0);
    EXPECT_EQ(weights.masters()[0].tensor.dtype(), DType::bf16);
    Optimizer optimizer(*kernels, counted, weights.segments(), lamb ? nn::lamb() : adamw());
    EXPECT_EQ(counted.usage(MemoryTag::optimizer).current, 2 * 4 * kCount);
    kernels::StepState& state = *reachable_state;
    state = {};
    for (int step = 0; step < 400; ++step) optimizer.step(state, {.learning_rate = 0x1p-7 / 160});
    double mean = 0;
    for (std::int64_t i = 0; i < kCount; ++i)
      mean += static_cast<float>(parameter.value.const_data<bfloat16>()[i]) / double{kCount};
    return mean;
  };
  const double moved = 400 * 0x1p-7 / 160;
  EXPECT_NEAR(trained(false), 1 + moved, 0.003);
  EXPECT_GT(trained(true), 1 + 0.9 * moved) << "LAMB's steps grow with the weights";
}

TEST_F(Optimizers, StochasticRoundingIsRefusedWithMasters) {
  Segment segment{.name = "w",
                  .master = Tensor::zeros({5}, DType::f32, *memory, MemoryTag::parameters),
                  .gradient = Tensor::zeros({5}, DType::f32, *memory, MemoryTag::gradients),
                  .rounding = kernels::RoundingPlace{}};
  const auto error = [&](const auto& make) {
    try {
      make();
    } catch (const Error& problem) {
      return problem.message();
    }
    return std::string();
  };
  const auto adamw = [&] { const Optimizer made(*kernels, *memory, {segment}, nn::adamw()); };
  EXPECT_EQ(error(adamw),
            "w: stochastic rounding is of bf16 parameters without masters, not of f32");
  segment.master = Tensor::zeros({5}, DType::bf16, *memory, MemoryTag::parameters);
  EXPECT_EQ(error([&] { const Optimizer made(*kernels, *memory, {segment}, sgd()); }),
            "w: SGD has no stochastic rounding; AdamW, LAMB, Lion and Adafactor have");
  segment.value = segment.master;
  EXPECT_EQ(
      error(adamw),
      "w: stochastic rounding is of bf16 parameters without masters, not of bf16 masters with "
      "a copy");
  Parameter parameter("w", {4}, {});
  parameter.value = Tensor::zeros({4}, DType::f32, *memory, MemoryTag::parameters);
  std::vector<Parameter*> parameters{&parameter};
  EXPECT_EQ(
      error([&] { MasterWeights(parameters, DType::f16, *kernels, *memory, {}, nullptr, 3); }),
      "stochastic rounding is of bf16 parameters, not of f16");
}

TEST_F(Optimizers, StateIsNamedAndCounted) {
  Segment segment{.name = "w",
                  .master = Tensor::zeros({5}, DType::f32, *memory, MemoryTag::parameters),
                  .gradient = Tensor::zeros({5}, DType::f32, *memory, MemoryTag::gradients)};
  Optimizer adamw(*kernels, *memory, {segment}, nn::adamw());
  ASSERT_EQ(adamw.state_tensors().size(), 2u);
  EXPECT_EQ(adamw.state_tensors()[1].state.name, "exp_avg_sq");
  for (const StateTensor& entry : adamw.state_tensors()) EXPECT_EQ(entry.tensor.bytes(), 20u);
  EXPECT_TRUE(Optimizer(*kernels, *memory, {segment}, sgd()).state_tensors().empty());
  EXPECT_THROW(sgd({.nesterov = true}), Error);
  segment.master = segment.gradient =
      Tensor::zeros({2, 3, 4}, DType::f32, *memory, MemoryTag::parameters);
  Optimizer factored(*kernels, *memory, {segment}, nn::adafactor());
  const std::vector<StateTensor> means = factored.state_tensors();
  ASSERT_EQ(means.size(), 2u);
  EXPECT_EQ(means[0].state.name, "exp_avg_sq_row");
  EXPECT_EQ(means[0].tensor.shape(), (Shape{2, 3}));
  EXPECT_EQ(means[1].state.name, "exp_avg_sq_col");
  EXPECT_EQ(means[1].tensor.shape(), (Shape{2, 4}));
}

TEST(LossScaler, GrowsAfterTheWindowAndShrinksOnOverflow) {
  LossScaler scaler({.init_scale = 1024, .window = 3, .min_scale = 256});
  scaler.update(true);
  EXPECT_EQ(scaler.scale(), 512);
  for (int step = 0; step < 3; ++step) scaler.update(false);
  EXPECT_EQ(scaler.scale(), 1024);
  for (int step = 0; step < 4; ++step) scaler.update(true);
  EXPECT_EQ(scaler.scale(), 256);
  // An overflow in every step of a window at the smallest scale counts as divergence.
  EXPECT_THROW(for (int step = 0; step < 3; ++step) scaler.update(true), Error);
}

TEST(LossScaler, DelayedShiftBearsOverflows) {
  LossScaler scaler({.init_scale = 8, .delayed_shift = 2});
  scaler.update(true);
  EXPECT_EQ(scaler.scale(), 8);
  scaler.update(true);
  EXPECT_EQ(scaler.scale(), 4);
  LossScaler fixed({.dynamic = false, .init_scale = 8});
  fixed.update(true);
  EXPECT_EQ(fixed.scale(), 8);
}

TEST(LossScaler, BacksOffByItsOwnFactorAndNeverLeavesF32) {
  LossScaler scaler({.init_scale = 3e38, .factor = 4, .backoff = 0.75, .window = 1});
  scaler.update(false);
  EXPECT_EQ(scaler.scale(), static_cast<double>(3e38F))
      << "growth that f32 does not hold is left out";
  scaler.restore({.scale = 64});
  scaler.update(true);
  EXPECT_EQ(scaler.scale(), 48);
  EXPECT_THROW(LossScaler({.init_scale = 1e39}), Error);
  EXPECT_THROW(LossScaler({.backoff = 1}), Error);
}

TEST(LossScaler, GoesToAStepStateAndBack) {
  LossScaler scaler({.init_scale = 1024, .window = 5, .delayed_shift = 2});
  scaler.update(false);
  scaler.update(true);
  kernels::StepState state;
  state.step = 9;
  scaler.put(state);
  EXPECT_EQ(state.loss_scale, 1024);
  EXPECT_EQ(state.step, 9u);
  kernels::follow(scaler.rule(), true, state);
  LossScaler other({.init_scale = 2, .window = 5, .delayed_shift = 2});
  other.take(state);
  scaler.update(true);
  EXPECT_EQ(other.state(), scaler.state());
  EXPECT_EQ(other.scale(), 512);
  state.overflows_at_minimum = 5;
  EXPECT_THROW(other.take(state), Error) << "it has diverged";
  LossScaler fixed({.dynamic = false, .init_scale = 8});
  fixed.take(state);
  EXPECT_EQ(fixed.scale(), 8);
}

}  // namespace
}  // namespace shoal::nn
