// Which layers LoRA adapts, what then learns, and the adapters' names and initial values.
#include "shoal/nn/layers/lora.h"

#include <cmath>

#include "nn/rig.h"
#include <gmock/gmock.h>

#include "shoal/nn/layers/decoder_layers.h"
#include "shoal/nn/layers/self_attention.h"

namespace shoal::nn {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// GPT-2's layers beside Llama's and BERT's, and a head.
class Mixed final : public Module {
 public:
  Mixed()
      : attn(*this, "h.0.attn",
             std::make_unique<CausalSelfAttention>(
                 CausalSelfAttentionConfig{.channels = 8, .heads = 2, .max_positions = 9})),
        mlp(*this, "h.0.mlp", std::make_unique<Mlp>(MlpConfig{.channels = 8, .inner = 12})),
        self(*this, "h.1.self",
             std::make_unique<SelfAttention>(
                 SelfAttentionConfig{.channels = 8, .heads = 2, .max_positions = 9})),
        classifier(*this, "classifier.out_proj",
                   std::make_unique<Linear>(LinearConfig{.in = 8, .out = 3})) {
    name_tree();
  }
  std::string_view kind() const override { return "Mixed"; }

  Slot<AttentionLike> attn;
  Slot<MlpLike> mlp;
  Slot<AttentionLike> self;
  Slot<LinearLike> classifier;
};

std::vector<std::string> learning(const Module& module) {
  std::vector<std::string> names;
  for (const Parameter* parameter : module.parameters())
    if (parameter->trainable()) names.push_back(parameter->name());
  return names;
}

TEST(AddLora, NamesAreThoseOfPeftAndOnlyTheFactorsLearn) {
  Mixed model;
  EXPECT_THAT(add_lora(model, {.target_modules = {"mlp.c_proj", "key"}}),
              ElementsAre("h.0.mlp.c_proj", "h.1.self.key"));
  EXPECT_THAT(learning(model),
              ElementsAre("h.0.mlp.c_proj.lora_A.weight", "h.0.mlp.c_proj.lora_B.weight",
                          "h.1.self.key.lora_A.weight", "h.1.self.key.lora_B.weight"));
  const std::vector<LinearLike*> adapted = adapted_layers(model);
  ASSERT_EQ(adapted.size(), 2u);
  EXPECT_EQ(adapted[0]->lora()->a().shape(), (Shape{8, 12}));  // of Conv1D [in 12, out 8]
  EXPECT_EQ(adapted[0]->lora()->b().shape(), (Shape{8, 8}));
  EXPECT_EQ(adapted[0]->parameters()[0]->name(), "h.0.mlp.c_proj.weight");
}

TEST(AddLora, ByDefaultTheQueriesAndValuesOfEachAttention) {
  Mixed model;
  EXPECT_THAT(add_lora(model, {}),
              ElementsAre("h.0.attn.c_attn", "h.1.self.query", "h.1.self.value"));
}

TEST(AddLora, AllLinearLeavesOutTheModulesThatAreTrainedWhole) {
  Mixed model;
  EXPECT_THAT(add_lora(model, {.target_modules = {"all-linear"},
                               .modules_to_save = {"classifier", "score"}}),
              ElementsAre("h.0.attn.c_attn", "h.0.attn.c_proj", "h.0.mlp.c_fc", "h.0.mlp.c_proj",
                          "h.1.self.query", "h.1.self.key", "h.1.self.value", "h.1.self.output"));
  const std::vector<std::string> names = learning(model);
  EXPECT_EQ(names.size(), 2 * 8u + 2);
  EXPECT_THAT(names, ::testing::Contains("classifier.out_proj.bias"));
}

TEST(AddLora, TheScaleIsAlphaOverTheRankOrItsRoot) {
  for (const bool rslora : {false, true}) {
    Mixed model;
    add_lora(model, {.r = 16, .lora_alpha = 4, .lora_dropout = 0.25, .use_rslora = rslora});
    const LoraConfig& config = adapted_layers(model)[0]->lora()->config();
    EXPECT_EQ(config.r, 16);
    EXPECT_EQ(config.scale, rslora ? 1.0f : 0.25f);
    EXPECT_EQ(config.dropout, 0.25f);
    EXPECT_EQ(config.given->lora_alpha, 4);
  }
}

TEST(AddLora, RefusesWithTheNamesThereAre) {
  Mixed model;
  const auto error = [&](const LoraOptions& options) {
    return error_of([&] { add_lora(model, options); });
  };
  EXPECT_THAT(
      error({.target_modules = {"query", "q_proj"}}),
      HasSubstr("lora_target_modules: no linear layer is named q_proj; the last parts of the "
                "names there are: c_attn, c_fc, c_proj, key, out_proj, output, query, "
                "value; or all-linear"));
  // "y" is the end of "query", but no part of the path.
  EXPECT_THAT(error({.target_modules = {"y"}}), HasSubstr("no linear layer is named y"));
  EXPECT_THAT(error({.r = 0}), HasSubstr("lora_r is 0"));
  EXPECT_THAT(error({.lora_dropout = 1}), HasSubstr("lora_dropout is 1"));
  EXPECT_THAT(learning(model), ::testing::SizeIs(model.parameters().size())) << "nothing changed";
  add_lora(model, {});
  EXPECT_THAT(error({}), HasSubstr("has adapters already"));
}

TEST(AddLora, AFreshAdapterChangesNoBit) {
  Rig rig;
  const auto output = [&](bool adapted, DType dtype) {
    Mixed model;
    if (adapted) add_lora(model, {.target_modules = {"query", "c_attn"}});
    model.materialize(rig.context, dtype);
    const Value x{rig.tensor({2, 5, 8}, 3, dtype)};
    return model.self->forward(rig.context, model.attn->forward(rig.context, x, {}), {}).tensor;
  };
  for (const DType dtype : {DType::f32, DType::bf16})
    EXPECT_TRUE(same_bits(output(true, dtype), output(false, dtype)));
}

// x·W + b + scale · x·Aᵀ·Bᵀ, in double.
TEST(AddLora, TheAdapterAddsTheScaledProductOfItsFactors) {
  Rig rig;
  Conv1D layer({.in = 4, .out = 3});
  layer.adapt({.r = 2, .scale = 0.75f});
  layer.name_tree("layer");
  std::uint32_t seed = 7;
  for (Parameter* parameter : layer.parameters()) rig.give(*parameter, seed++);
  const Tensor x = rig.tensor({5, 4}, 3);
  const std::vector<float> in = floats(x), w = floats(layer.parameters()[0]->value),
                           bias = floats(layer.parameters()[1]->value),
                           a = floats(layer.lora()->a().value), b = floats(layer.lora()->b().value),
                           got = floats(layer.forward(rig.context, Value{x}).tensor);
  for (std::size_t row = 0; row < 5; ++row)
    for (std::size_t o = 0; o < 3; ++o) {
      double want = bias[o];
      for (std::size_t i = 0; i < 4; ++i) {
        double factors = 0;
        for (std::size_t r = 0; r < 2; ++r)
          factors += static_cast<double>(b[o * 2 + r]) * a[r * 4 + i];
        want += in[row * 4 + i] * (w[i * 3 + o] + 0.75 * factors);
      }
      EXPECT_NEAR(got[row * 3 + o], want, 1e-5);
    }
}

// torch.nn.init.kaiming_uniform_(A, a=√5): uniform in ±1/√in.
TEST(AddLora, TheFirstFactorStartsUniformAndTheSecondWithZeros) {
  Rig rig;
  Linear layer({.in = 400, .out = 3});
  layer.adapt({.r = 64});
  layer.name_tree("layer");
  layer.materialize(rig.context, DType::f32);
  double squares = 0;
  float least = 1, most = -1;
  for (const float a : floats(layer.lora()->a().value)) {
    squares += static_cast<double>(a) * a;
    least = std::min(least, a);
    most = std::max(most, a);
  }
  const double bound = 1 / std::sqrt(400.0);
  EXPECT_GE(least, -bound);
  EXPECT_LT(most, bound);
  EXPECT_LT(least, -0.999 * bound);
  EXPECT_GT(most, 0.999 * bound);
  EXPECT_NEAR(std::sqrt(squares / (64 * 400)), bound / std::sqrt(3.0), 0.01 * bound);
  for (const float b : floats(layer.lora()->b().value)) ASSERT_EQ(b, 0);
}

TEST(AddLora, APartOfAWeightGetsThatPartOfItsFactors) {
  Linear rows({.in = 6, .out = 4});
  rows.parameters()[0]->set_part({8, 6}, {{{2, 6}, {0, 0}, {2, 0}}, {{2, 6}, {2, 0}, {6, 0}}});
  rows.adapt({.r = 3});
  const Parameter &a = rows.lora()->a(), &b = rows.lora()->b();
  EXPECT_TRUE(a.applies_to_part());
  EXPECT_FALSE(a.is_part());
  EXPECT_EQ(b.whole_shape(), (Shape{8, 3}));
  ASSERT_EQ(b.pieces().size(), 2u);
  EXPECT_EQ(b.pieces()[1], (ParameterPiece{{2, 3}, {2, 0}, {6, 0}}));

  Linear columns({.in = 3, .out = 8});
  columns.parameters()[0]->set_part({8, 6}, {{{8, 3}, {0, 0}, {0, 3}}});
  columns.adapt({.r = 5});
  EXPECT_EQ(columns.lora()->a().whole_shape(), (Shape{5, 6}));
  EXPECT_EQ(columns.lora()->a().pieces()[0], (ParameterPiece{{5, 3}, {0, 0}, {0, 3}}));
  EXPECT_TRUE(columns.lora()->b().applies_to_part());
  EXPECT_FALSE(columns.lora()->b().is_part());
}

}  // namespace
}  // namespace shoal::nn
