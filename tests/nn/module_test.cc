// The tree of modules: names, slots, shared parameters, initial values; the generation cache.
#include <cmath>
#include <deque>

#include "nn/rig.h"
#include "support/budget.h"
#include <gmock/gmock.h>

namespace shoal::nn {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class Tree final : public Module {
 public:
  Tree()
      : wte(*this, "wte", std::make_unique<Embedding>(11, 8, 0.02f)),
        first(*this, "h.0", std::make_unique<Mlp>(MlpConfig{.channels = 8, .inner = 16})),
        second(*this, "h.1", std::make_unique<Mlp>(MlpConfig{.channels = 8, .inner = 16})),
        norm(*this, "ln_f", std::make_unique<LayerNorm>(8, 1e-5f)),
        head(*this, "lm_head", std::make_unique<LmHead>(table())) {}
  std::string_view kind() const override { return "Tree"; }
  std::shared_ptr<Parameter> table() const { return static_cast<Embedding&>(*wte).weight(); }

  Slot<EmbeddingLike> wte;
  Slot<Mlp> first, second;
  Slot<NormLike> norm;
  Slot<HeadLoss> head;
};

std::vector<std::string> names(const Module& module) {
  std::vector<std::string> all;
  for (const Parameter* parameter : module.parameters()) all.push_back(parameter->name());
  return all;
}

TEST(ModuleTree, NamesAreHuggingFacesAndASharedParameterAppearsOnce) {
  Tree tree;
  tree.name_tree("transformer");
  EXPECT_THAT(names(tree), ElementsAre("transformer.wte.weight", "transformer.h.0.c_fc.weight",
                                       "transformer.h.0.c_fc.bias", "transformer.h.0.c_proj.weight",
                                       "transformer.h.0.c_proj.bias", "transformer.h.1.c_fc.weight",
                                       "transformer.h.1.c_fc.bias", "transformer.h.1.c_proj.weight",
                                       "transformer.h.1.c_proj.bias", "transformer.ln_f.weight",
                                       "transformer.ln_f.bias"));
  std::vector<std::string> children;
  for (const Module::Child& child : tree.children())
    children.push_back(child.name + " " + std::string(child.module->kind()));
  EXPECT_THAT(children, ElementsAre("wte Embedding", "h.0 Mlp", "h.1 Mlp", "ln_f LayerNorm",
                                    "lm_head LmHead"));
  EXPECT_EQ(tree.first->c_fc->path(), "transformer.h.0.c_fc");
  EXPECT_EQ(names(*tree.head), std::vector<std::string>{"transformer.wte.weight"})
      << "the owner names it";
  tree.name_tree();
  EXPECT_EQ(tree.path(), "");
  EXPECT_EQ(names(tree).front(), "wte.weight");
}

class Chain final : public Module {
 public:
  explicit Chain(int layers) {
    for (int i = 0; i < layers; ++i)
      norms.emplace_back(*this, fmt::format("h.{}", i), std::make_unique<LayerNorm>(1, 1e-5f));
  }
  std::string_view kind() const override { return "Chain"; }
  std::deque<Slot<NormLike>> norms;
};

// Commit f990d27 searched for each parameter among all earlier ones, which took minutes for these.
TEST(ModuleTree, ParametersOfManyLayersAreFoundInLinearTime) {
  constexpr int kLayers = 100'000;
  const Chain chain(kLayers);
  testing::within_seconds(2, "parameters()",
                          [&] { EXPECT_EQ(chain.parameters().size(), std::size_t{2 * kLayers}); });
}

TEST(ModuleTree, PathHashesAreFnv1aOfThePath) {
  EXPECT_EQ(hash_name(""), 0x811c9dc5u);
  EXPECT_EQ(hash_name("a"), 0xe40c292cu);
  EXPECT_EQ(hash_name("foobar"), 0xbf9cf968u);
  Tree tree;
  tree.name_tree("x");
  EXPECT_EQ(tree.second->path_hash(), hash_name("x.h.1"));
  EXPECT_NE(tree.first->path_hash(), tree.second->path_hash());
}

// A rank's part of a tensor starts with the values of the whole tensor at that place.
TEST(ModuleTree, PartsAreDrawnAsTheWholeIs) {
  class Owner final : public Module {
   public:
    Owner(Shape shape, float std)
        : weight(add_parameter("weight", shape, {Initializer::Kind::normal, std})) {
      name_tree("owner");
    }
    std::string_view kind() const override { return "Owner"; }
    std::shared_ptr<Parameter> weight;
  };
  Rig rig;
  Owner whole({5, 3, 14}, 0.5f);
  whole.materialize(rig.context, DType::f32);
  const float* all = whole.weight->value.const_data<float>();
  Owner part({3, 3, 7}, 0.5f);  // two boxes: [1, 4) x [0, 3) x [3, 7) and x [11, 14)
  part.weight->set_part({5, 3, 14},
                        {{{3, 3, 4}, {0, 0, 0}, {1, 0, 3}}, {{3, 3, 3}, {0, 0, 4}, {1, 0, 11}}});
  part.materialize(rig.context, DType::f32);
  for (std::int64_t i = 0; i < 3; ++i)
    for (std::int64_t j = 0; j < 3; ++j)
      for (std::int64_t k = 0; k < 7; ++k)
        EXPECT_EQ(part.weight->value.const_data<float>()[(i * 3 + j) * 7 + k],
                  all[((i + 1) * 3 + j) * 14 + (k < 4 ? k + 3 : k + 7)])
            << i << ' ' << j << ' ' << k;
  Owner rows({2, 3, 14}, 0.5f);  // consecutive, so drawn in one call
  rows.weight->set_part({5, 3, 14}, {{{2, 3, 14}, {0, 0, 0}, {3, 0, 0}}});
  rows.materialize(rig.context, DType::bf16);
  for (std::int64_t i = 0; i < 84; ++i)
    EXPECT_EQ(static_cast<float>(rows.weight->value.const_data<bfloat16>()[i]),
              static_cast<float>(bfloat16(all[3 * 42 + i])));
  EXPECT_TRUE(rows.weight->is_part());
  EXPECT_FALSE(whole.weight->is_part());

  Owner wrong({4, 4}, 1);
  const auto cut = [&](std::vector<ParameterPiece> pieces) {
    return error_of([&] { wrong.weight->set_part({4, 8}, std::move(pieces)); });
  };
  EXPECT_THAT(cut({{{4, 4}, {0, 0}, {0, 5}}}), HasSubstr("does not lie within"));
  EXPECT_THAT(cut({{{4, 3}, {0, 0}, {0, 0}}}), HasSubstr("12 elements, the parameter 16"));
  EXPECT_THAT(cut({{{4, 2}, {0, 0}, {0, 0}}, {{4, 3}, {0, 1}, {0, 4}}}), HasSubstr("overlap"));
  EXPECT_THAT(error_of([&] { rows.weight->set_part({2, 3, 14}, {}); }), HasSubstr("materialised"));
}

TEST(ModuleTree, ReplacesWhatIsChosenByKind) {
  Tree tree;
  std::vector<std::string> offered;
  tree.replace_modules([&](std::unique_ptr<Module>& child) -> std::unique_ptr<Module> {
    offered.emplace_back(child->kind());
    if (child->kind() != "Conv1D") return nullptr;
    return std::make_unique<Linear>(static_cast<Conv1D&>(*child).config());
  });
  EXPECT_THAT(offered, ElementsAre("Embedding", "Mlp", "Conv1D", "Conv1D", "Mlp", "Conv1D",
                                   "Conv1D", "LayerNorm", "LmHead"));
  EXPECT_EQ(tree.second->c_proj->kind(), "Linear");
  EXPECT_THAT(error_of([&] {
                tree.replace_modules([](std::unique_ptr<Module>& child) -> std::unique_ptr<Module> {
                  if (child->kind() != "Mlp") return nullptr;
                  return std::make_unique<LayerNorm>(8, 1e-5f);
                });
              }),
              HasSubstr("a LayerNorm cannot take the place of the Mlp"));
}

// Replaces a layer by another of the same kind, as tensor parallelism does.
class Doubling final : public LinearLike {
 public:
  explicit Doubling(std::unique_ptr<LinearLike> inner) : inner_(*this, "inner", std::move(inner)) {}
  std::string_view kind() const override { return "Doubling"; }
  Value forward(Context& context, const Value& x) override {
    const Value y = inner_->forward(context, x);
    return add(context, y, y);
  }

 private:
  Slot<LinearLike> inner_;
};

TEST(ModuleTree, ASlotTakesAnotherLayerOfItsKind) {
  Rig rig;
  Tree tree;
  tree.name_tree();
  tree.materialize(rig.context, DType::f32);
  const Value x{rig.tensor({2, 8}, 3)};
  const std::vector<float> before = floats(tree.first->forward(rig.context, x).tensor);
  std::unique_ptr<LinearLike> old = tree.first->c_proj.replace(nullptr);
  ASSERT_NE(old, nullptr);
  EXPECT_EQ(old->kind(), "Conv1D");
  EXPECT_EQ(tree.first->c_proj.replace(std::make_unique<Doubling>(std::move(old))), nullptr);
  tree.name_tree();
  EXPECT_THAT(names(*tree.first), ElementsAre("h.0.c_fc.weight", "h.0.c_fc.bias",
                                              "h.0.c_proj.inner.weight", "h.0.c_proj.inner.bias"));
  const std::vector<float> after = floats(tree.first->forward(rig.context, x).tensor);
  for (std::size_t i = 0; i < before.size(); ++i) EXPECT_EQ(after[i], 2 * before[i]);
}

TEST(ModuleTree, WeightDecayPassesOverBiasesAndNorms) {
  Tree tree;
  tree.name_tree();
  for (const Parameter* parameter : tree.parameters()) {
    const bool weight = parameter->shape().rank() == 2;
    EXPECT_EQ(parameter->decays(), weight) << parameter->name();
    EXPECT_TRUE(parameter->trainable());
  }
}

// --- initial values ------------------------------------------------------------------------

TEST(Materialize, EachParameterHasItsDistribution) {
  Rig rig;
  Conv1D layer(LinearConfig{.in = 200, .out = 301, .std = 0.02f});
  layer.name_tree("layer");
  layer.materialize(rig.context, DType::f32);
  LayerNorm norm(33, 1e-5f);
  norm.name_tree("norm");
  norm.materialize(rig.context, DType::f32);
  EXPECT_THAT(floats(layer.parameters()[1]->value), Each(0.0f));
  EXPECT_THAT(floats(norm.parameters()[0]->value), Each(1.0f));
  EXPECT_THAT(floats(norm.parameters()[1]->value), Each(0.0f));
  const std::vector<float> weight = floats(layer.parameters()[0]->value);
  const auto count = static_cast<double>(weight.size());
  double sum = 0, squares = 0, fourth = 0, neighbours = 0;
  for (std::size_t i = 0; i < weight.size(); ++i) {
    const double z = static_cast<double>(weight[i]) / 0.02;
    sum += z;
    squares += z * z;
    fourth += z * z * z * z;
    if (i > 0) neighbours += z * static_cast<double>(weight[i - 1]) / 0.02;
  }
  // Five standard deviations of each moment of a standard normal sample.
  EXPECT_NEAR(sum / count, 0, 5 / std::sqrt(count));
  EXPECT_NEAR(squares / count, 1, 5 * std::sqrt(2 / count));
  EXPECT_NEAR(fourth / count, 3, 5 * std::sqrt(96 / count));
  EXPECT_NEAR(neighbours / count, 0, 5 / std::sqrt(count));
}

TEST(Materialize, GivesTheSameBitsWhateverElseExists) {
  Rig rig;
  Tree tree;
  tree.name_tree("transformer");
  tree.materialize(rig.context, DType::f32);
  // Only the middle module, on another rig, after other draws.
  Rig other;
  other.context.random.sample_first = 5;
  other.context.next_site(3);
  Mlp alone(MlpConfig{.channels = 8, .inner = 16});
  alone.name_tree("transformer.h.1");
  alone.materialize(other.context, DType::f32);
  const std::vector<Parameter*> expected = tree.second->parameters(), actual = alone.parameters();
  for (std::size_t i = 0; i < expected.size(); ++i)
    EXPECT_TRUE(same_bits(actual[i]->value, expected[i]->value)) << actual[i]->name();
  EXPECT_FALSE(same_bits(tree.first->parameters()[0]->value, expected[0]->value))
      << "another name, other values";
  // A 16-bit value is the rounded f32 value.
  alone.materialize(other.context, DType::bf16);
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const std::vector<float> narrow = floats(actual[i]->value), wide = floats(expected[i]->value);
    for (std::size_t k = 0; k < wide.size(); ++k)
      ASSERT_EQ(narrow[k], static_cast<float>(bfloat16(wide[k])));
  }
  // Another seed gives other values.
  other.context.random.seed = 43;
  alone.materialize(other.context, DType::f32);
  EXPECT_FALSE(same_bits(actual[0]->value, expected[0]->value));
}

TEST(Materialize, CountsItsMemory) {
  Rig rig;
  Tree tree;
  tree.name_tree();
  tree.materialize(rig.context, DType::bf16);
  std::int64_t elements = 0;
  for (const Parameter* parameter : tree.parameters()) elements += parameter->shape().count();
  EXPECT_EQ(rig.memory.usage(MemoryTag::parameters).current, 2 * elements);
  EXPECT_EQ(rig.memory.usage(MemoryTag::workspace).current, 0);
  tree.parameters()[0]->set_trainable(false);
  allocate_gradients(rig.context, tree.parameters());
  EXPECT_EQ(rig.memory.usage(MemoryTag::gradients).current, 4 * (elements - 11 * 8));
  EXPECT_FALSE(tree.parameters()[0]->gradient.defined());
  EXPECT_THAT(floats(tree.parameters()[1]->gradient), Each(0.0f));
}

// --- generation ----------------------------------------------------------------------------

class Cached : public ::testing::Test {
 protected:
  Rig rig;
  Context& context = rig.context;
  CausalSelfAttention layer{
      CausalSelfAttentionConfig{.channels = 8, .heads = 2, .max_positions = 16}};
  KeyValueCache cache;
  const Tensor x = rig.tensor({2, 7, 8}, 3);
  Cached() {
    layer.name_tree("attn");
    std::uint32_t seed = 1;
    for (Parameter* parameter : layer.parameters()) rig.give(*parameter, seed++);
    context.mode = Mode::evaluate;
    cache.entries = rig.tensor({2, 9, 16}, 4);
  }
  Tensor piece(std::int64_t from, std::int64_t count) {
    Tensor made = Tensor::empty({2, count, 8}, DType::f32, rig.memory, MemoryTag::data);
    for (std::int64_t b = 0; b < 2; ++b)
      std::copy_n(x.const_data<float>() + (b * 7 + from) * 8, count * 8,
                  made.data<float>() + b * count * 8);
    return made;
  }
};

TEST_F(Cached, AttentionPieceByPieceIsTheWhole) {
  const std::vector<float> whole = floats(layer.forward(context, Value{x}, {}).tensor);
  std::int64_t at = 0;
  for (const std::int64_t count : {3, 1, 1, 2}) {  // a prompt, then tokens
    const std::vector<float> part =
        floats(layer.forward(context, Value{piece(at, count)}, {.cache = &cache}).tensor);
    for (std::int64_t b = 0; b < 2; ++b)
      for (std::int64_t i = 0; i < count * 8; ++i)
        EXPECT_NEAR(part[static_cast<std::size_t>(b * count * 8 + i)],
                    whole[static_cast<std::size_t>((b * 7 + at) * 8 + i)], 1e-5);
    at += count;
    EXPECT_EQ(cache.length, at);
  }
}

TEST_F(Cached, ThePaddingMaskHoldsForTheCacheToo) {
  Tensor mask = Tensor::empty({2, 7}, DType::u8, rig.memory, MemoryTag::data);
  for (std::int64_t i = 0; i < 14; ++i) mask.data<std::uint8_t>()[i] = i >= 2;  // left padding
  const std::vector<float> whole =
      floats(layer.forward(context, Value{x}, {.key_mask = mask}).tensor);
  EXPECT_NE(whole, floats(layer.forward(context, Value{x}, {}).tensor));
  std::int64_t at = 0;
  for (const std::int64_t count : {4, 1, 2}) {
    Tensor so_far = Tensor::empty({2, at + count}, DType::u8, rig.memory, MemoryTag::data);
    for (std::int64_t b = 0; b < 2; ++b)
      std::copy_n(mask.const_data<std::uint8_t>() + b * 7, at + count,
                  so_far.data<std::uint8_t>() + b * (at + count));
    const std::vector<float> part = floats(
        layer.forward(context, Value{piece(at, count)}, {.key_mask = so_far, .cache = &cache})
            .tensor);
    for (std::int64_t b = 0; b < 2; ++b)
      for (std::int64_t i = 0; i < count * 8; ++i)
        EXPECT_NEAR(part[static_cast<std::size_t>(b * count * 8 + i)],
                    whole[static_cast<std::size_t>((b * 7 + at) * 8 + i)], 1e-5);
    at += count;
  }
  EXPECT_THAT(error_of([&] {
                layer.forward(context, Value{piece(0, 1)}, {.key_mask = mask, .cache = &cache});
              }),
              HasSubstr("key_mask"));
}

TEST_F(Cached, RefusesTrainingAndOverflow) {
  layer.forward(context, Value{x}, {.cache = &cache});
  EXPECT_THAT(error_of([&] { layer.forward(context, Value{piece(0, 3)}, {.cache = &cache}); }),
              HasSubstr("10 positions in a key-value cache of 9"));
  EXPECT_EQ(cache.length, 7);
  context.mode = Mode::train;
  EXPECT_THAT(error_of([&] { layer.forward(context, Value{piece(0, 1)}, {.cache = &cache}); }),
              HasSubstr("serves inference"));
}

}  // namespace
}  // namespace shoal::nn
