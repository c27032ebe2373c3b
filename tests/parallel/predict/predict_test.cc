// Predictions of a step: parts checked by hand, limits, and machine files.
#include "shoal/parallel/predict/predict.h"

#include <cmath>
#include <map>

#include "support/error_text.h"
#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

#include "shoal/nn/layers/lora.h"
#include "shoal/nn/models/causal_lm.h"
#include "shoal/nn/models/encoder/model.h"
#include "shoal/parallel/predict/search.h"
#include "shoal/parallel/predict/unit_times.h"

namespace shoal::parallel {
namespace {

using nlohmann::json;
using test::error_text;
using ::testing::Contains;
using ::testing::DoubleNear;
using ::testing::HasSubstr;

// 1 TFLOP/s and 1 GB/s without launches, waves and latencies, so that times are round numbers.
json plain_machine() {
  return {{"name", "plain"},
          {"devices", 4},
          {"memory", 1e9},
          {"bandwidth", 1e12},
          {"products", {{"flops", {{"f32", 1e12}}}}},
          {"node", {{"bandwidth", 1e9}}},
          {"network", {{"bandwidth", 1e8}}},
          {"software", {{"optimizer_efficiency", 1}}}};
}

std::unique_ptr<nn::CausalLm> gpt2(int layers = 4, int channels = 256, int vocabulary = 1000) {
  const json config = {{"model_type", "gpt2"}, {"vocab_size", vocabulary}, {"n_embd", channels},
                       {"n_head", 4},          {"n_layer", layers},        {"n_positions", 128}};
  return nn::make_causal_lm(config, "test");
}
ModelShape gpt2_shape(int layers = 4, int channels = 256, int vocabulary = 1000) {
  return model_shape(*gpt2(layers, channels, vocabulary));
}

TEST(ModelShape, ReadsTheSizesOfEachUnit) {
  const ModelShape shape = gpt2_shape();
  ASSERT_EQ(shape.units.size(), 6U);  // embeddings, four blocks, head
  EXPECT_TRUE(shape.units[0].products.empty());
  const UnitShape& block = shape.units[1];
  ASSERT_EQ(block.products.size(), 4U);  // c_attn, c_proj, c_fc, c_proj
  std::int64_t elements = 0;
  for (const ProductShape& product : block.products) elements += product.in * product.out;
  EXPECT_EQ(elements, 12 * 256 * 256);
  EXPECT_EQ(block.heads, 4);
  EXPECT_EQ(block.head_width, 64);
  EXPECT_EQ(block.norms, 2);
  EXPECT_EQ(block.inner, 1024);
  EXPECT_EQ(shape.units[5].vocabulary, 1000);
  // Tied embeddings count once: 12 c^2 + 13 c for each block, two tables, the last norm.
  EXPECT_EQ(shape.elements(), 4 * (12 * 256 * 256 + 13 * 256) + (1000 + 128) * 256 + 2 * 256);
}

TEST(ModelShape, LlamaHasGatedAndGroupedSizes) {
  const json config = {{"model_type", "llama"},    {"vocab_size", 512},
                       {"hidden_size", 128},       {"num_attention_heads", 8},
                       {"num_key_value_heads", 2}, {"num_hidden_layers", 2},
                       {"intermediate_size", 384}, {"max_position_embeddings", 64}};
  const ModelShape shape = model_shape(*nn::make_causal_lm(config, "test"));
  const UnitShape& block = shape.units[1];
  EXPECT_EQ(block.products.size(), 7U);
  EXPECT_EQ(block.key_heads, 2);
  EXPECT_EQ(block.inner, 384);
  EXPECT_EQ(block.branches, 2);
}

TEST(ModelShape, EncodersSeeLaterPositionsAndScoreFewOfThem) {
  nn::EncoderConfig config = nn::EncoderConfig::of("bert");
  config.num_hidden_layers = 2;
  const ModelShape shape = model_shape(nn::Encoder(config, nn::EncoderTask::masked_lm));
  ASSERT_EQ(shape.units.size(), 4U);
  EXPECT_FALSE(shape.units[1].causal);
  EXPECT_EQ(shape.units[1].products.size(), 6U);
  EXPECT_EQ(shape.units[1].inner, 3072);
  EXPECT_EQ(shape.units[3].vocabulary, 30522);
  EXPECT_EQ(shape.units[3].share, 3.0 / 16);
  // Attention over all positions takes twice the time of causal attention.
  const Machine machine = read_machine(plain_machine(), "test");
  UnitShape block = shape.units[1];
  const double all = unit_times(machine, block, 768, {.length = 128}).forward.attention;
  block.causal = true;
  EXPECT_DOUBLE_EQ(all, 2 * unit_times(machine, block, 768, {.length = 128}).forward.attention);
}

// Megatron's formula (Narayanan et al., 2021) without recomputation: 72·B·s·l·h² (1 + s/6h +
// V/12lh).
TEST(ModelShape, FlopsAreThePublishedFormula) {
  const double B = 3, s = 128, l = 4, h = 256, V = 1000;
  const double published = 72 * B * s * l * h * h * (1 + s / (6 * h) + V / (12 * l * h));
  EXPECT_NEAR(3 * forward_flops(gpt2_shape(), 3, 128) / published, 1, 1e-12);
}

// Adapters of rank 8 of GPT-2's c_attn: an eighth of the products' backward is left out, and what
// is frozen has values only.
TEST(ModelShape, FrozenWeightsCostNoGradients) {
  const json config = {{"model_type", "gpt2"}, {"vocab_size", 1000}, {"n_embd", 256},
                       {"n_head", 4},          {"n_layer", 4},       {"n_positions", 128}};
  const auto model = nn::make_causal_lm(config, "test");
  nn::add_lora(*model, {.r = 8});
  const ModelShape adapted = model_shape(*model), whole = gpt2_shape();
  const std::int64_t factors = 4 * 8 * (256 + 3 * 256);
  const Elements elements = elements_of(adapted.units);
  EXPECT_EQ(elements.trained, factors);
  EXPECT_EQ(elements.frozen, whole.elements());
  EXPECT_EQ(elements_of(whole.units).frozen, 0);
  // Each frozen product lacks one of its three passes; the factors have all three.
  const double products = 2.0 * 3 * 128 * (4 * 12 * 256 * 256 + 1000 * 256);
  EXPECT_NEAR(training_flops(adapted, 3, 128),
              3 * forward_flops(whole, 3, 128) - products + 3 * 2.0 * 3 * 128 * factors, 1);
  EXPECT_EQ(training_flops(whole, 3, 128), 3 * forward_flops(whole, 3, 128));

  const Machine machine = read_machine(plain_machine(), "test");
  const auto predicted = [&](const ModelShape& shape) {
    ParallelPlan plan;
    plan.precision.dtype = DType::f32;
    return predict({.model = shape,
                    .machine = machine,
                    .plan = plan,
                    .run = {.ranks = 1, .batch = 2, .length = 128}});
  };
  const Prediction all = predicted(whole), few = predicted(adapted);
  const StateMemory& state = few.ranks.front().state;
  EXPECT_EQ(state.parameters, 4.0 * static_cast<double>(whole.elements() + factors));
  EXPECT_EQ(state.gradients, 4.0 * factors);
  EXPECT_EQ(state.optimizer, 8.0 * factors);
  EXPECT_LT(few.ranks.front().activations, all.ranks.front().activations);
  EXPECT_LT(few.ranks.front().backward, 0.7 * all.ranks.front().backward);
  EXPECT_LT(few.parts.optimizer, 0.02 * all.parts.optimizer);
}

TEST(ProductSeconds, IsTheRateTheDepthAndTheWaves) {
  json file = plain_machine();
  Machine machine = read_machine(file, "test");
  EXPECT_DOUBLE_EQ(product_seconds(machine, DType::f32, 1000, 1000, 1000), 2e-3);
  file["products"]["half_depth"] = 1000;
  file["products"]["efficiency"] = 0.5;
  EXPECT_DOUBLE_EQ(product_seconds(read_machine(file, "test"), DType::f32, 1000, 1000, 1000), 8e-3);
  // 64 tiles of 125 on 63 processors take two waves; the second is nearly empty.
  file = plain_machine();
  file["products"]["tile"] = 125;
  file["products"]["processors"] = 63;
  const double waves = 2.0 * 125 * 125 * 1000 * 2 * 63 / 1e12;
  EXPECT_DOUBLE_EQ(product_seconds(read_machine(file, "test"), DType::f32, 1000, 1000, 1000),
                   (2e-3 + waves) / 2);
  // A product of one row only reads its weight.
  EXPECT_DOUBLE_EQ(product_seconds(machine, DType::f32, 1, 1000, 1000),
                   4.0 * (1000 + 1000 * 1000 + 1000) / 1e12);
}

TEST(AllReduceSeconds, IsARingInsideAndBetweenNodes) {
  const Machine machine = read_machine(plain_machine(), "test");
  EXPECT_DOUBLE_EQ(all_reduce_seconds(machine, 1e6, 1, 1, 1, 1), 0);
  EXPECT_DOUBLE_EQ(all_reduce_seconds(machine, 1e6, 4, 1, 1, 1), 1.5e-3);
  EXPECT_DOUBLE_EQ(all_reduce_seconds(machine, 1e6, 8, 2, 1, 1), 1.5e-3 + 1e-2);
  // Two groups share the network, and reach 80 % of its bandwidth.
  EXPECT_DOUBLE_EQ(all_reduce_seconds(machine, 1e6, 2, 2, 2, 0.8), 1e-2 * 2 / 0.8);
}

TEST(TimeTable, IsLinearBetweenAndBeyondItsPoints) {
  const TimeTable table{{{0, 1}, {10, 2}, {20, 6}}};
  EXPECT_DOUBLE_EQ(table.at(5), 1.5);
  EXPECT_DOUBLE_EQ(table.at(15), 4);
  EXPECT_DOUBLE_EQ(table.at(30), 10);
}

struct Wanted {
  int ranks = 1, pipeline = 1, tensor = 1, microbatches = 1;
  std::int64_t batch = 4;
};
Prediction predicted(const Wanted& w, const Machine& machine, ParallelPlan plan = {}) {
  plan.mesh.pipeline = w.pipeline;
  plan.mesh.tensor = w.tensor;
  plan.pipeline.microbatches = w.microbatches;
  plan.tensor = {.prescaled_batch = true, .speed = true};
  const ModelShape shape = gpt2_shape();
  return predict({.model = shape,
                  .machine = machine,
                  .plan = plan,
                  .run = {.ranks = w.ranks, .batch = w.batch, .length = 128}});
}

TEST(Predict, PartsAddUpToTheStep) {
  const Machine machine = find_machine("a100-megatron-deepspeed");
  ParallelPlan plan;
  plan.precision.dtype = DType::f16;
  plan.activations.checkpoint_group = 1;
  for (const Wanted& w : {Wanted{}, Wanted{.ranks = 2, .tensor = 2}, Wanted{.ranks = 4},
                          Wanted{.ranks = 2, .pipeline = 2, .microbatches = 4},
                          Wanted{.ranks = 16, .pipeline = 2, .tensor = 2, .microbatches = 2}}) {
    const Prediction p = predicted(w, machine, plan);
    const StepParts& s = p.parts;
    double sum = s.products + s.attention + s.passes + s.loss + s.tensor_exchanges +
                 s.recomputation + s.launches + s.bubble + s.gradients + s.optimizer + s.fixed;
    EXPECT_NEAR(sum / p.seconds, 1, 1e-9) << w.ranks << " ranks";
    EXPECT_GT(p.mfu, 0);
    // Narayanan et al.: 96·B·s·l·h² (1 + s/6h + V/16lh) with recomputation, which the head does not
    // do.
    const double s_6h = 128 / (6.0 * 256), v_lh = 1000 / (4.0 * 256);
    EXPECT_NEAR(p.hfu / p.mfu, 96 * (1 + s_6h + v_lh / 16) / (72 * (1 + s_6h + v_lh / 12)), 1e-12);
  }
}

TEST(Predict, TheRanksOfAPipelineHaveTheirPhasesAndMemory) {
  const ModelShape shape = gpt2_shape();
  const Machine machine = read_machine(plain_machine(), "plain");
  ParallelPlan plan;
  plan.mesh.pipeline = 2;
  plan.pipeline.microbatches = 4;
  plan.pipeline.schedule = ScheduleKind::one_f_one_b;
  const Prediction p = predict({.model = shape,
                                .machine = machine,
                                .plan = plan,
                                .run = {.ranks = 2, .batch = 4, .length = 128}});
  ASSERT_EQ(p.ranks.size(), 2U);
  double most = 0;
  for (std::size_t i = 0; i < 2; ++i) {
    const RankPrediction& rank = p.ranks[i];
    // Each rank's phases fill the step, except for the work of all ranks after the pipeline.
    EXPECT_NEAR(rank.forward + rank.backward + rank.waits,
                p.seconds - p.parts.gradients - p.parts.optimizer, 1e-9);
    EXPECT_GT(rank.waits, 0);
    EXPECT_EQ(rank.state.parameters, p.stages[i].state.parameters);
    most = std::max(most, rank.state.parameters + rank.state.gradients + rank.state.optimizer +
                              rank.activations);
  }
  EXPECT_DOUBLE_EQ(most, p.memory);
  // The first rank keeps two microbatches at once. The loss's gradients are part of forward.
  EXPECT_GT(p.ranks[0].backward, 1.5 * p.ranks[0].forward);
  EXPECT_LT(p.ranks[1].backward, 1.5 * p.ranks[1].forward);
}

TEST(Predict, PipelinesOfEqualStagesHaveThePublishedBubble) {
  Machine machine = read_machine(plain_machine(), "test");
  machine.node.bandwidth = 1e18;  // messages cost nothing
  ParallelPlan plan;
  plan.pipeline.schedule = ScheduleKind::one_f_one_b;
  // With a negligible vocabulary only blocks count: two stages of two.
  const ModelShape shape = gpt2_shape(4, 256, 8);
  plan.mesh.pipeline = 2;
  plan.pipeline.partition.counts = "3,3";
  for (const int microbatches : {1, 2, 8}) {
    plan.pipeline.microbatches = microbatches;
    const Prediction p = predict({.model = shape,
                                  .machine = machine,
                                  .plan = plan,
                                  .run = {.ranks = 2, .batch = 8, .length = 128}});
    const double share = p.parts.bubble / (p.seconds - p.parts.optimizer - p.parts.gradients);
    EXPECT_NEAR(share, 1.0 / (microbatches + 1), 0.02) << microbatches << " microbatches";
  }
}

TEST(Predict, MoreRanksOfAnyAxisTakeLess) {
  Machine machine = read_machine(plain_machine(), "test");
  machine.node.bandwidth = 1e15;
  const double one = predicted({.batch = 8}, machine).seconds;
  EXPECT_LT(predicted({.ranks = 2, .tensor = 2, .batch = 8}, machine).seconds, one);
  EXPECT_LT(predicted({.ranks = 2, .pipeline = 2, .microbatches = 8, .batch = 8}, machine).seconds,
            one);
  EXPECT_LT(predicted({.ranks = 2, .batch = 4}, machine).seconds, one);
}

TEST(Predict, GradientsThatBackwardHidesCostTheirLastBucket) {
  json file = plain_machine();
  const double hidden = predicted({.ranks = 2}, read_machine(file, "test")).parts.gradients;
  file["software"]["overlaps_gradients"] = false;
  const double exposed = predicted({.ranks = 2}, read_machine(file, "test")).parts.gradients;
  EXPECT_LT(hidden, exposed);
  // One all_reduce of all parameters over two ranks of a node.
  EXPECT_NEAR(exposed, static_cast<double>(gpt2_shape().elements()) * 4 / 1e9, 1e-12);
}

TEST(Predict, GradientsAreSummedInTheSoftwaresWidth) {
  json file = plain_machine();
  file["products"]["flops"]["bf16"] = 1e12;
  file["software"]["overlaps_gradients"] = false;
  ParallelPlan plan;
  plan.precision.dtype = DType::bf16;
  const double elements = static_cast<double>(gpt2_shape().elements());
  EXPECT_NEAR(predicted({.ranks = 2}, read_machine(file, "test"), plan).parts.gradients,
              elements * 4 / 1e9, 1e-12);
  file["software"]["gradient_bytes"] = 2;
  EXPECT_NEAR(predicted({.ranks = 2}, read_machine(file, "test"), plan).parts.gradients,
              elements * 2 / 1e9, 1e-12);
}

// Values of 16 bits are sent in 16 bits; their gradients are summed in f32.
TEST(Predict, ShardingMovesGradientsInF32AndValuesInTheirDtype) {
  json file = plain_machine();
  file["products"]["flops"]["bf16"] = 1e12;
  file["software"]["overlaps_gradients"] = false;
  const Machine machine = read_machine(file, "test");
  const double half = static_cast<double>(gpt2_shape().elements()) / 1e9 / 2;  // a byte an element
  ParallelPlan plan;
  plan.precision.dtype = DType::bf16;
  plan.pipeline.schedule = ScheduleKind::one_f_one_b;
  const auto seconds = [&](int level) {
    plan.sharding.level = level;
    return predicted({.ranks = 2, .microbatches = 2}, machine, plan).parts.gradients / half;
  };
  EXPECT_NEAR(seconds(0), 4 + 4, 1e-9);
  EXPECT_NEAR(seconds(1), 4 + 2, 1e-9);
  EXPECT_NEAR(seconds(2), 2 * 4 + 2, 1e-9);      // gradients of each microbatch
  EXPECT_NEAR(seconds(3), 2 * 4 + 4 * 2, 1e-9);  // values for two forwards and two backwards
}

TEST(Predict, TheBoundOfTimeIsBelowTheTime) {
  const ModelShape shape = gpt2_shape(6);
  const Machine machine = read_machine(plain_machine(), "test");
  ParallelPlan plan;
  plan.mesh.pipeline = 2;
  plan.pipeline.microbatches = 4;
  for (const ScheduleKind kind : {ScheduleKind::simple, ScheduleKind::interleaved,
                                  ScheduleKind::one_f_one_b, ScheduleKind::virtual_interleaved,
                                  ScheduleKind::zero_bubble, ScheduleKind::zero_bubble_v}) {
    plan.pipeline.schedule = kind;
    plan.pipeline.chunks =
        kind == ScheduleKind::virtual_interleaved || kind == ScheduleKind::zero_bubble_v ? 2 : 1;
    const StepModel model({.model = shape,
                           .machine = machine,
                           .plan = plan,
                           .run = {.ranks = 2, .batch = 8, .length = 128}});
    const Prediction p = model.predict();
    EXPECT_LE(model.least_seconds(), p.seconds) << static_cast<int>(kind);
    EXPECT_GT(model.least_seconds(), 0.8 * p.seconds) << static_cast<int>(kind);
    EXPECT_EQ(model.memory(), p.memory);
  }
}

// Stages that wait for their messages pay for two a microbatch. If tensor-parallel ranks split
// messages, each sends its share.
TEST(Predict, MessagesThatStagesWaitForCostTheirTime) {
  json file = plain_machine();
  const auto bubble = [&](double bandwidth, bool overlaps, bool splits, int tensor = 1) {
    file["node"]["bandwidth"] = bandwidth;
    file["software"]["overlaps_messages"] = overlaps;
    file["software"]["splits_messages"] = splits;
    ParallelPlan plan;
    plan.pipeline.schedule = ScheduleKind::one_f_one_b;
    return predicted({.ranks = 2 * tensor,
                      .pipeline = 2,
                      .tensor = tensor,
                      .microbatches = 8,
                      .batch = 8},
                     read_machine(file, "test"), plan)
        .parts.bubble;
  };
  const double message = 4.0 * 128 * 256 / 1e9;  // one sample
  const double none = bubble(1e18, true, false), waited = bubble(1e9, false, false);
  // Eight microbatches wait on one stage, and one on the other.
  EXPECT_NEAR(waited - none, 2 * 9 * message, 1e-3 * message);
  EXPECT_LT(bubble(1e9, true, false), waited - 4 * message);
  // On one node, half a message and an all_gather over two ranks take as long as the whole message.
  EXPECT_NEAR(bubble(1e9, false, true, 2), bubble(1e9, false, false, 2), 1e-3 * message);
}

// Groups with one rank on each node each have their share of the network.
TEST(Predict, RailsHaveTheirOwnShareOfTheNetwork) {
  json file = plain_machine();
  file["software"]["overlaps_gradients"] = false;
  file["network_efficiency"] = 0.5;
  const auto gradients = [&](int tensor) {
    ParallelPlan plan;
    plan.tensor.prescaled_batch = true;
    return predicted({.ranks = 8, .tensor = tensor, .batch = 8}, read_machine(file, "test"), plan)
        .parts.gradients;
  };
  const double rails = gradients(4), rings = gradients(1);
  file["network_rail_efficiency"] = 0.25;
  EXPECT_NEAR(gradients(4), 2 * rails, 1e-12);
  EXPECT_NEAR(gradients(1), rings, 1e-12);
}

SearchRequest small_search(const ModelShape& shape, const Machine& machine) {
  return {.model = shape, .machine = machine, .ranks = 8, .batch = 32, .length = 128, .keep = 7};
}

// A matrix of Adafactor's has means of rows and columns, a vector a number for each element.
double adafactor_numbers(const nn::Chain& model) {
  double numbers = 0;
  for (const nn::Parameter* parameter : model.parameters()) {
    const Shape& shape = parameter->shape();
    numbers += static_cast<double>(shape.rank() == 2 ? shape[0] + shape[1] : shape.count());
  }
  return numbers;
}

TEST(Predict, TheUpdateRuleDecidesTheOptimizersBytes) {
  const auto model = gpt2();
  const Machine machine = read_machine(plain_machine(), "test");
  ParallelPlan plan;
  plan.precision.dtype = DType::f32;
  const auto with = [&](const nn::UpdateRule& rule) {
    return predict({.model = model_shape(*model, &rule),
                    .machine = machine,
                    .plan = plan,
                    .run = {.ranks = 1, .batch = 2, .length = 128}});
  };
  const auto elements = static_cast<double>(model_shape(*model).elements());
  const Prediction adam = with(*nn::adamw()), lion = with(*nn::lion()), sgd = with(*nn::sgd()),
                   momentum = with(*nn::sgd({.momentum = 0.9})), factored = with(*nn::adafactor());
  EXPECT_EQ(adam.stages[0].state.optimizer, 8 * elements);
  EXPECT_EQ(lion.stages[0].state.optimizer, 4 * elements);
  EXPECT_EQ(momentum.stages[0].state.optimizer, 4 * elements);
  EXPECT_EQ(sgd.stages[0].state.optimizer, 0);
  const double numbers = adafactor_numbers(*model);
  EXPECT_LT(numbers, 0.05 * elements);
  EXPECT_EQ(factored.stages[0].state.optimizer, 4 * numbers);
  // Gradient, master read and written; moments read and written. Adafactor reads the gradient 4
  // times.
  EXPECT_NEAR(lion.parts.optimizer, adam.parts.optimizer * 5 / 7, 1e-12);
  EXPECT_NEAR(sgd.parts.optimizer, adam.parts.optimizer * 3 / 7, 1e-12);
  EXPECT_NEAR(factored.parts.optimizer,
              adam.parts.optimizer * (6 * elements + 2 * numbers) / (7 * elements), 1e-12);
  const auto fastest = [&](const nn::UpdateRule& rule) {
    const ModelShape shape = model_shape(*model, &rule);
    return search(small_search(shape, machine)).fastest.front().prediction;
  };
  EXPECT_LT(fastest(*nn::lion()).parts.optimizer, fastest(*nn::adamw()).parts.optimizer);
  EXPECT_LT(fastest(*nn::adafactor()).memory, fastest(*nn::lion()).memory);
}

TEST(Predict, PricesAStep) {
  json file = plain_machine();
  file["price"] = {{"dollars_per_hour", 36}, {"date", "2026-11-01"}, {"region", "nowhere"}};
  const Prediction p = predicted({.ranks = 8}, read_machine(file, "test"));  // two nodes
  EXPECT_NEAR(p.dollars_per_step, p.seconds * 0.01 * 2, 1e-15);
}

TEST(Predict, AnIllegalLayoutIsRefusedAsTheRunWould) {
  const Machine machine = read_machine(plain_machine(), "test");
  EXPECT_THAT(error_text([&] { predicted({.ranks = 3, .tensor = 2}, machine); }),
              HasSubstr("3 ranks do not divide"));
  EXPECT_THAT(error_text([&] { predicted({.ranks = 8, .tensor = 8}, machine); }),
              HasSubstr("4 attention heads"));
}

// Branch and bound finds the same layouts as predicting every legal one.
TEST(Search, IsTheSameAsPredictingEveryLayout) {
  const ModelShape shape = gpt2_shape(6);
  json file = plain_machine();
  file["memory"] = 4e7;  // some layouts do not fit
  const Machine machine = read_machine(file, "test");
  const SearchRequest request = small_search(shape, machine);
  std::vector<double> seconds;
  std::int64_t large = 0;
  for (const Candidate& one : legal_layouts(request)) {
    const Prediction p =
        predict({.model = shape, .machine = machine, .plan = one.plan, .run = one.run});
    if (p.memory <= 0.94 * machine.memory)
      seconds.push_back(p.seconds);
    else
      ++large;
  }
  std::ranges::sort(seconds);
  ASSERT_GT(seconds.size(), 50U);
  ASSERT_GT(large, 10);
  const SearchResult result = search(request);
  ASSERT_EQ(result.fastest.size(), 7U);
  for (std::size_t i = 0; i < 7; ++i)
    EXPECT_DOUBLE_EQ(result.fastest[i].prediction.seconds, seconds[i]) << i;
  EXPECT_LT(result.predicted, result.layouts);
}

// Without a pipeline, the backward of a microbatch also follows its forward at once.
TEST(Search, KeepsOneMicrobatchOnOneRank) {
  const ModelShape shape = gpt2_shape(6);
  const Machine machine = read_machine(plain_machine(), "test");
  const double one = predicted({.batch = 1}, machine).activations;
  const auto layouts = legal_layouts(
      {.model = shape, .machine = machine, .ranks = 1, .batch = 32, .length = 128, .keep = 7});
  int found = 0;
  for (const Candidate& layout : layouts) {
    if (layout.plan.pipeline.microbatches != 32 || layout.plan.activations.checkpoint_group > 0)
      continue;
    ++found;
    const Prediction p =
        predict({.model = shape, .machine = machine, .plan = layout.plan, .run = layout.run});
    EXPECT_LT(p.activations, 2 * one);
  }
  EXPECT_EQ(found, 1);
}

TEST(Search, SaysWhatTheSmallestLayoutNeedsIfNoneFits) {
  const ModelShape shape = gpt2_shape(6);
  const Machine machine = read_machine(plain_machine(), "test");
  SearchRequest request = small_search(shape, machine);
  request.memory = 1e5;
  const SearchResult result = search(request);
  EXPECT_TRUE(result.fastest.empty());
  EXPECT_GT(result.least_memory, 1e5);
  // With exactly the memory of that layout's state, the search may still refuse it because of its
  // activations. With ten times as much, some layout fits.
  request.memory = 10 * result.least_memory;
  EXPECT_FALSE(search(request).fastest.empty());
}

TEST(Machines, BlockFactorsAreInterpolatedOverTheLogarithmOfTokens) {
  json file = plain_machine();
  file["blocks"] = {{{"channels", 256}, {"tensor", 1}, {"tokens", 1024}, {"factor", 1.0}},
                    {{"channels", 256}, {"tensor", 1}, {"tokens", 4096}, {"factor", 2.0}}};
  const Machine machine = read_machine(file, "test");
  EXPECT_THAT(machine.block_factor(256, 1, 2048), DoubleNear(1.5, 1e-12));
  EXPECT_EQ(machine.block_factor(256, 1, 512), 1.0);
  EXPECT_EQ(machine.block_factor(256, 1, 1 << 20), 2.0);
  EXPECT_EQ(machine.block_factor(256, 2, 2048), 1.0);
  EXPECT_EQ(machine.block_factor(512, 1, 2048), 1.0);
}

json product_tables() {
  const json axes = {{"rows", {10, 1000}}, {"in", {100, 200}}, {"out", {100}}};
  json tables = axes;
  // The rates are 1e9 and 4e9 multiply-adds a second for 10 and 1000 rows.
  for (const char* kind : {"forward", "input_gradient", "weight_gradient"})
    tables[kind] = {1e-4, 2e-4, 2.5e-3, 5e-3};
  return tables;
}

TEST(Machines, MeasuredProductsAreInterpolatedOverTheLogarithmsOfTheirSizes) {
  json file = plain_machine();
  file["products"]["measured"]["f32"] = product_tables();
  file["products"]["efficiency"] = 0.5;
  const Machine machine = read_machine(file, "test");
  const ProductTable& table = machine.products.measured.at(DType::f32).forward;
  EXPECT_NEAR(table.at(10, 100, 100), 1e-4, 1e-12);
  EXPECT_NEAR(table.at(1000, 200, 100), 5e-3, 1e-12);
  EXPECT_NEAR(table.at(100, 150, 100), 100 * 150 * 100 / 2e9, 1e-12);  // geometric mean of rates
  EXPECT_NEAR(table.at(4000, 400, 300), 4000.0 * 400 * 300 / 4e9, 1e-12);
  const UnitShape unit{.name = "one", .products = {{.in = 100, .out = 100}}, .parameters = {}};
  const UnitTimes times = unit_times(machine, unit, 100, {.rows = 1, .length = 10});
  EXPECT_NEAR(times.forward.products, 2e-4, 1e-12);
  EXPECT_NEAR(times.backward.products, 4e-4, 1e-12);
}

TEST(Machines, EachBuiltInFileIsRead) {
  EXPECT_THAT(machine_names(), Contains("a100-megatron-deepspeed"));
  for (const std::string& name : machine_names()) EXPECT_EQ(find_machine(name).name, name);
}

TEST(Machines, AnUnknownNameGetsTheNearest) {
  EXPECT_THAT(error_text([] { find_machine("a100-megatron-deepsped"); }),
              HasSubstr("did you mean a100-megatron-deepspeed?"));
}

TEST(Machines, AWrongFieldIsNamed) {
  const auto text_of = [](const json& change) {
    json file = plain_machine();
    file.merge_patch(change);
    return error_text([&] { read_machine(file, "m.json"); });
  };
  EXPECT_THAT(text_of({{"bandwidth", -1}}), HasSubstr("m.json has bandwidth: -1"));
  EXPECT_THAT(text_of({{"products", {{"flops", {{"f33", 1}}}}}}), HasSubstr("f33"));
  EXPECT_THAT(text_of({{"devices", 0}}), HasSubstr("no devices"));
  EXPECT_THAT(text_of({{"node", {{"all_reduce", {{"2", {{3, 1}, {2, 1}}}}}}}}),
              HasSubstr("ascend"));
  EXPECT_THAT(text_of({{"node", {{"all_reduce", {{"x", json::array()}}}}}}),
              HasSubstr("\"x\" ranks"));
  EXPECT_THAT(text_of({{"blocks", {{{"channels", 1}}}}}), HasSubstr("without channels, tensor"));
  EXPECT_THAT(text_of({{"products", nullptr}}), HasSubstr("lacks products"));
  json tables = product_tables();
  tables["forward"].erase(0);
  EXPECT_THAT(text_of({{"products", {{"measured", {{"f32", tables}}}}}}), HasSubstr("4 times"));
  tables = product_tables();
  tables["in"] = {200, 100};
  EXPECT_THAT(text_of({{"products", {{"measured", {{"f32", tables}}}}}}), HasSubstr("in that"));
}

}  // namespace
}  // namespace shoal::parallel
