// A machine that is fitted to a run predicts that run.
#include "shoal/parallel/calibrate/fit.h"

#include <gmock/gmock.h>

#include "shoal/nn/models/causal_lm.h"
#include "shoal/parallel/predict/predict.h"

namespace shoal::parallel {
namespace {

using nlohmann::json;

// Two replicas of a small GPT-2, whose step hides no transfer.
Prediction step_on(const json& machine) {
  const json config = {{"model_type", "gpt2"}, {"vocab_size", 1000}, {"n_embd", 256},
                       {"n_head", 4},          {"n_layer", 4},       {"n_positions", 128}};
  const ModelShape shape = model_shape(*nn::make_causal_lm(config, "test"));
  const Machine read = read_machine(machine, "machine");
  const ParallelPlan plan;
  return predict({.model = shape,
                  .machine = read,
                  .plan = plan,
                  .run = {.ranks = 2, .batch = 4, .length = 128}});
}

json phases_of(const Prediction& p) {
  return {{"forward_seconds", p.ranks[0].forward},
          {"backward_seconds", p.ranks[0].backward},
          {"communication_seconds", p.parts.gradients},
          {"optimizer_seconds", p.parts.optimizer}};
}

TEST(FitToStep, PredictsTheStepThatItWasFittedTo) {
  const json config = {{"model_type", "gpt2"}, {"vocab_size", 1000}, {"n_embd", 256},
                       {"n_head", 4},          {"n_layer", 4},       {"n_positions", 128}};
  const TracedModel traced{.config = config,
                           .shape = model_shape(*nn::make_causal_lm(config, "test")),
                           .rows = 4,
                           .length = 128,
                           .trace = {.products = 0.6,
                                     .attention = 0.07,
                                     .passes = 0.2,
                                     .head = 0.3,
                                     .optimizer = 0.04,
                                     .between = 0.01}};
  const json machine = fit_to_step({{"devices", 1},
                                    {"memory", 1e9},
                                    {"bandwidth", 1e12},
                                    {"products", {{"flops", {{"f32", 1e11}}}}}},
                                   traced, DType::f32);
  const Machine read = read_machine(machine, "machine");
  const ParallelPlan plan;
  const Prediction p = predict({.model = traced.shape,
                                .machine = read,
                                .plan = plan,
                                .run = {.batch = traced.rows, .length = traced.length}});
  EXPECT_NEAR(p.parts.products + p.parts.loss, 0.9, 1e-6);
  EXPECT_NEAR(p.parts.launches, 0.01, 1e-6);
  EXPECT_NEAR(p.seconds, 1.22, 4e-3);  // embeddings
  EXPECT_NEAR(p.parts.attention, 0.07, 1e-6);
  EXPECT_NEAR(p.parts.optimizer, 0.04, 1e-6);
}

TEST(FitMachine, PredictsTheRunThatItWasFittedTo) {
  const nlohmann::ordered_json machine = {
      {"devices", 2},
      {"memory", 1e9},
      {"bandwidth", 1e10},
      {"products", {{"flops", {{"f32", 1e11}}}, {"half_depth", 1000}}},
      {"node", {{"all_reduce", {{"2", {{0, 1e-4}, {4e6, 1e-2}}}}}}},
      {"software", {{"overlaps_gradients", false}, {"sharpness", 1}, {"block_launch", 1e-3}}}};
  const json predicted = phases_of(step_on(machine));
  json measured = predicted;
  measured["forward_seconds"] = predicted["forward_seconds"].get<double>() * 1.25;
  measured["backward_seconds"] = predicted["backward_seconds"].get<double>() * 1.25;
  measured["communication_seconds"] = predicted["communication_seconds"].get<double>() * 3;
  measured["optimizer_seconds"] = predicted["optimizer_seconds"].get<double>() * 0.5;
  const json again = phases_of(step_on(fit_machine(machine, predicted, measured)));
  for (const auto& [name, seconds] : measured.items())
    EXPECT_NEAR(again[name].get<double>() / seconds.get<double>(), 1, 1e-3) << name;  // embeddings
}

TEST(FitMachine, KeepsWhatTheRunDidNotMeasure) {
  const nlohmann::ordered_json machine = {{"products", {{"efficiency", 0.5}}},
                                          {"software", {{"optimizer_efficiency", 0.25}}}};
  const auto fitted = fit_machine(machine, {{"forward_seconds", 1.0}}, {{"forward_seconds", 2.0}});
  EXPECT_DOUBLE_EQ(fitted["products"]["efficiency"], 0.25);
  EXPECT_DOUBLE_EQ(fitted["products"]["attention_efficiency"], 0.5);
  EXPECT_DOUBLE_EQ(fitted["software"]["optimizer_efficiency"], 0.25);
  EXPECT_FALSE(fitted.contains("node"));
}

}  // namespace
}  // namespace shoal::parallel
