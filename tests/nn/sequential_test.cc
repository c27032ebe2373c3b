// A user's own model and own loss.
#include "shoal/nn/layers/sequential.h"

#include <limits>

#include "nn/rig.h"
#include <gmock/gmock.h>

namespace shoal::nn {
namespace {

using ::testing::HasSubstr;

float squared(float x, float target, float& slope) {
  slope = 2 * (x - target);
  return (x - target) * (x - target);
}

// Runs `loss` on a leaf: the loss, its sum and d(loss)/dx.
template <typename Loss>
std::tuple<float, float, std::vector<float>, std::int64_t> run(Rig& rig, const Tensor& x,
                                                               const Loss& loss) {
  Tape tape;
  rig.context.tape = &tape;
  const Value leaf = tape.leaf(x);
  const LossResult result = loss(leaf);
  tape.backward(rig.context, result.loss);
  rig.context.tape = nullptr;
  return {floats(result.loss.tensor)[0], floats(result.loss_sum)[0], floats(tape.gradient(leaf)),
          result.targets};
}

TEST(PointwiseLoss, SquaresGiveTheSquaredError) {
  Rig rig;
  const Tensor x = rig.tensor({5, 1}, 3), targets = rig.tensor({5}, 4);
  targets.data<float>()[1] = std::numeric_limits<float>::quiet_NaN();
  const LossOptions options{.loss_scale = 0.5f};
  const auto own = run(rig, x, [&](const Value& leaf) {
    return pointwise_loss(rig.context, "squared", leaf, targets, options, squared);
  });
  const auto known = run(rig, x, [&](const Value& leaf) {
    return squared_error(rig.context, leaf, targets, options);
  });
  EXPECT_FLOAT_EQ(std::get<0>(own), std::get<0>(known));
  EXPECT_FLOAT_EQ(std::get<1>(own), std::get<1>(known));
  EXPECT_EQ(std::get<2>(own), std::get<2>(known));
  EXPECT_EQ(std::get<3>(own), 4);
  EXPECT_EQ(std::get<2>(own)[1], 0);
}

TEST(PointwiseLoss, RefusesOtherShapes) {
  Rig rig;
  try {
    pointwise_loss(rig.context, "squared", Value{rig.tensor({5}, 3)}, rig.tensor({4}, 4), {},
                   squared);
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("squared: values and targets must be f32"));
  }
}

struct Table final : Unit {
  Slot<EmbeddingLike> rows{*this, "rows", std::make_unique<Embedding>(10, 4, 0.5f)};
  Value forward(Context& context, const Value& x, const ChainInput& input) override {
    EXPECT_FALSE(x.tensor.defined());
    return rows->forward(context, input.ids);
  }
};
struct Twice final : Unit {
  Value forward(Context& context, const Value& x, const ChainInput&) override {
    return add(context, x, x);
  }
};
struct Head final : LossUnit {
  Slot<Linear> linear{*this, "linear", std::make_unique<Linear>(LinearConfig{.in = 4, .out = 1})};
  Value scores(Context& context, const Value& x, const ChainInput&) override {
    return linear->forward(context, x);
  }
  LossOutput loss(Context& context, const Value& scores, const ChainInput& input) override {
    return pointwise_loss(context, "squared", scores, input.targets, input.loss, squared);
  }
};

TEST(Sequential, RunsItsUnitsInOrder) {
  Rig rig;
  std::vector<std::unique_ptr<Unit>> units;
  units.push_back(std::make_unique<Table>());
  units.push_back(std::make_unique<Twice>());
  Sequential model(4, std::move(units), std::make_unique<Head>());
  model.name_tree();
  model.materialize(rig.context, DType::f32);
  std::vector<std::string> names;
  for (const Parameter* parameter : model.parameters()) names.push_back(parameter->name());
  EXPECT_THAT(names, ::testing::UnorderedElementsAre("0.rows.weight", "head.linear.weight",
                                                     "head.linear.bias"));
  EXPECT_EQ(model.units(), 3);
  EXPECT_EQ(model.unit_name(1), "1");
  EXPECT_EQ(model.unit_name(2), "head");

  ChainInput input;
  input.ids = rig.ids({1, 2, 3, 4}, {2, 2});
  input.targets = rig.tensor({2, 2}, 4);
  const Tensor logits =
      model.head_logits(rig.context, forward_units(rig.context, model, 0, 2, {}, input), input);
  const LossOutput out = forward_head(rig.context, model, 0,
                                      forward_units(rig.context, model, 0, 2, {}, input), input);
  double sum = 0;
  for (std::int64_t i = 0; i < 4; ++i) {
    const float error = floats(logits)[static_cast<std::size_t>(i)] -
                        floats(input.targets)[static_cast<std::size_t>(i)];
    sum += error * error;
  }
  EXPECT_NEAR(floats(out.loss_sum)[0], sum, 1e-6);
  // Only the head, on doubled rows: score = 2 · row · weight + bias.
  const auto find = [&](const std::string& name) {
    for (const Parameter* parameter : model.parameters())
      if (parameter->name() == name) return floats(parameter->value);
    return std::vector<float>();
  };
  const auto table = find("0.rows.weight"), weight = find("head.linear.weight");
  float score = find("head.linear.bias")[0];
  for (std::size_t c = 0; c < 4; ++c) score += 2 * table[4 + c] * weight[c];
  EXPECT_NEAR(floats(logits)[0], score, 1e-6);
}

TEST(Sequential, NeedsAUnit) { EXPECT_THROW(Sequential(4, {}, std::make_unique<Head>()), Error); }

}  // namespace
}  // namespace shoal::nn
