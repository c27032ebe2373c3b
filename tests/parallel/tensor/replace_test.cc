// Replacing layers: which stay, which are refused, and how a user's own module takes part.
#include "shoal/parallel/tensor/replace.h"

#include "parallel/tensor/parts.h"
#include <gmock/gmock.h>

#include "shoal/nn/models/causal_lm.h"
#include "shoal/nn/models/headed_decoder.h"
#include "shoal/parallel/tensor/linear.h"

namespace shoal::parallel {
namespace {

using nn::Value;
using ::testing::HasSubstr;

nn::DecoderConfig tiny() {
  nn::DecoderConfig config = nn::DecoderConfig::of("gpt2");
  config.vocab_size = 31;
  config.max_position_embeddings = 12;
  config.hidden_size = 12;
  config.num_hidden_layers = 1;
  config.num_attention_heads = 4;
  return config;
}

std::string refusal(
    const Layout& layout, const nn::DecoderConfig& config,
    const std::function<void(nn::CausalLm&, TensorParallelRegistry&)>& change = {}) {
  std::string message;
  on_group(layout, [&](const TensorParallel& group) {
    nn::CausalLm model(config);
    TensorParallelRegistry registry = TensorParallelRegistry::defaults();
    if (change) change(model, registry);
    const std::string error =
        nn::error_of([&] { apply_tensor_parallelism(model, group, registry); });
    if (group.rank() == 0) message = error;
  });
  return message;
}

TEST(TensorParallelReplace, OneRankKeepsItsModel) {
  on_group({1, ActivationSplit::sequence}, [](const TensorParallel& group) {
    nn::CausalLm model(tiny());
    const std::vector<nn::Parameter*> before = model.parameters();
    apply_tensor_parallelism(model, group);
    EXPECT_EQ(model.parameters(), before);
  });
}

TEST(TensorParallelReplace, PartsKeepTheSettingsOfTheWhole) {
  on_group({2, ActivationSplit::none}, [](const TensorParallel& group) {
    nn::CausalLm model(tiny()), whole(tiny());
    model.parameters()[0]->set_trainable(false);  // the tied embedding
    for (nn::Parameter* parameter : model.parameters())
      if (parameter->name() == "transformer.h.0.mlp.c_fc.bias") parameter->set_decays(true);
    apply_tensor_parallelism(model, group);
    const auto parts = model.parameters(), wholes = whole.parameters();
    ASSERT_EQ(parts.size(), wholes.size());
    int cut = 0;
    for (std::size_t i = 0; i < parts.size(); ++i) {
      EXPECT_EQ(parts[i]->name(), wholes[i]->name());
      EXPECT_EQ(parts[i]->trainable(), i != 0) << parts[i]->name();
      EXPECT_EQ(parts[i]->decays(),
                wholes[i]->decays() || parts[i]->name() == "transformer.h.0.mlp.c_fc.bias");
      EXPECT_FALSE(gradient_is_partial(*parts[i], ActivationSplit::none));
      EXPECT_EQ(gradient_is_partial(*parts[i], ActivationSplit::batch), !parts[i]->is_part());
      cut += parts[i]->is_part() ? 1 : 0;
    }
    EXPECT_EQ(cut, 7);  // wte, c_attn's and c_fc's weight and bias, c_proj's weights
    EXPECT_EQ(model.lm_head->weight(), model.trunk().embedding().weight());
  });
}

TEST(TensorParallelReplace, SizesThatDoNotDivideAreNamed) {
  const Layout three{3, ActivationSplit::none};
  EXPECT_THAT(refusal(three, tiny()),
              HasSubstr("transformer.h.0.attn: 4 heads do not divide over tensor_parallel_degree "
                        "3"));
  nn::DecoderConfig inner = tiny();
  inner.num_attention_heads = 3;
  inner.intermediate_size = 16;
  EXPECT_THAT(refusal(three, inner),
              HasSubstr("transformer.h.0.mlp.c_fc: 16 output channels do not divide over"));
  on_group({2, ActivationSplit::sequence}, [](const TensorParallel& group) {
    Rig rig;
    EXPECT_THAT(nn::error_of([&] { const ForwardCoordinates c(rig.context, group, 7); }),
                HasSubstr("7 positions do not divide over tensor_parallel_degree 2"));
    {
      const ForwardCoordinates c(rig.context, group, 8);
      EXPECT_EQ(rig.context.activation.first_position, 4 * group.rank());
    }
    EXPECT_EQ(rig.context.activation.first_position, 0);
  });
}

TEST(TensorParallelReplace, SharedWeightsAreCutTogetherOrNotAtAll) {
  const Layout two{2, ActivationSplit::none};
  EXPECT_THAT(
      refusal(two, tiny(), [](auto&, auto& registry) { registry.remove("LmHead"); }),
      HasSubstr("transformer.wte.weight was cut, but a module that stayed whole shares it"));
  EXPECT_THAT(
      refusal(two, tiny(), [](auto&, auto& registry) { registry.remove("Embedding"); }),
      HasSubstr("transformer.wte.weight was cut, but a module that stayed whole shares it"));
  EXPECT_EQ(refusal(two, tiny(),
                    [](auto&, auto& registry) {
                      registry.remove("LmHead");
                      registry.remove("Embedding");
                    }),
            "no error");
}

TEST(TensorParallelReplace, UnderSequenceNothingMaySeeAPartOfThePositions) {
  const auto remove = [](auto&, auto& registry) { registry.remove("CausalSelfAttention"); };
  EXPECT_THAT(refusal({2, ActivationSplit::sequence}, tiny(), remove),
              HasSubstr("transformer.h.0.attn: a CausalSelfAttention has no tensor-parallel form"));
  EXPECT_EQ(refusal({2, ActivationSplit::none}, tiny(), remove), "no error");
  EXPECT_EQ(refusal({2, ActivationSplit::batch}, tiny(), remove), "no error");
}

// Such a head is not split. With split sequences its parameters move into a head that
// gathers the positions.
TEST(TensorParallelReplace, HeadsOfWholeSequencesKeepTheirParameters) {
  for (const Layout& layout : layouts({2}))
    on_group(layout, [](const TensorParallel& group) {
      nn::HeadedDecoder model(std::make_unique<nn::DecoderTrunk>(tiny()),
                              nn::DecoderHead::sequence_classification);
      const std::vector<nn::Parameter*> before = model.head->parameters();
      const std::string name = before.at(0)->name();
      apply_tensor_parallelism(model, group);
      EXPECT_EQ(model.head->kind(),
                group.split == ActivationSplit::sequence ? "SharedSampleHead" : "SampleHead");
      EXPECT_EQ(model.head->parameters(), before);
      EXPECT_EQ(before[0]->name(), name);
      EXPECT_FALSE(before[0]->is_part());
    });
}

TEST(TensorParallelReplace, ComesBeforeMaterialize) {
  Rig rig;
  EXPECT_THAT(refusal({2, ActivationSplit::none}, tiny(),
                      [&](nn::CausalLm& model, auto&) {
                        model.parameters()[0]->value = rig.tensor({31, 12}, 1);
                      }),
              HasSubstr("transformer.wte.weight has a value already"));
}

// A user's module: two linear layers with a dropout between them. It fills a LinearLike slot.
class Bottleneck final : public nn::LinearLike {
 public:
  Bottleneck()
      : down(*this, "down", std::make_unique<nn::Linear>(nn::LinearConfig{.in = 8, .out = 12})),
        drop(*this, "drop", std::make_unique<nn::Dropout>(0.3f)),
        up(*this, "up", std::make_unique<nn::Linear>(nn::LinearConfig{.in = 12, .out = 8})) {}
  std::string_view kind() const override { return "Bottleneck"; }
  Value forward(nn::Context& context, const Value& x) override {
    return up->forward(context, drop->forward(context, down->forward(context, x)));
  }
  nn::Slot<nn::LinearLike> down;
  nn::Slot<nn::Dropout> drop;
  nn::Slot<nn::LinearLike> up;
};

// Its author registers this form: columns, then rows, and a dropout that knows its channels.
class CutBottleneck final : public nn::LinearLike {
 public:
  CutBottleneck(Bottleneck& whole, const TensorParallel& group)
      : down(*this, "down", column_parallel(*whole.down, group)),
        drop(*this, "drop", std::make_unique<nn::Dropout>(whole.drop->site().probability)),
        up(*this, "up", row_parallel(*whole.up, group)),
        group_(group) {}
  std::string_view kind() const override { return "CutBottleneck"; }
  Value forward(nn::Context& context, const Value& x) override {
    const Value inner = down->forward(context, x);
    const GroupCoordinates coordinates(context, group_, x.tensor.shape()[0]);
    nn::DropoutSite site = drop->site();
    site.columns = 12;
    site.column_offset = group_.rank() * (site.columns / group_.size());
    return up->forward(context, dropout(context, inner, site));
  }
  nn::Slot<nn::LinearLike> down;
  nn::Slot<nn::Dropout> drop;
  nn::Slot<nn::LinearLike> up;

 private:
  TensorParallel group_;
};

class UserModel final : public nn::Module {
 public:
  UserModel() : layer(*this, "layer", std::make_unique<Bottleneck>()) { name_tree("model"); }
  std::string_view kind() const override { return "UserModel"; }
  nn::Slot<nn::LinearLike> layer;
};

TEST(TensorParallelReplace, AUsersModuleJoins) {
  for (const Layout& layout : layouts({2}))
    on_group(layout, [](const TensorParallel& group) {
      Rig rig;
      UserModel whole, cut;
      TensorParallelRegistry registry = TensorParallelRegistry::defaults();
      registry.add("Bottleneck", [](std::unique_ptr<nn::Module>& original, const TensorParallel& of,
                                    ReplacedParameters&) {
        return std::make_unique<CutBottleneck>(dynamic_cast<Bottleneck&>(*original), of);
      });
      apply_tensor_parallelism(cut, group, registry);
      EXPECT_EQ(cut.layer->kind(), "CutBottleneck");
      whole.materialize(rig.context, DType::f32);
      cut.materialize(rig.context, DType::f32);
      const std::int64_t samples = group.split == ActivationSplit::batch ? 6 : 3;
      const Tensor x = rig.tensor({samples, 4, 8}, 1);
      const Value expected = whole.layer->forward(rig.context, Value{x});
      rig.context.begin_forward();
      if (group.split == ActivationSplit::batch)
        rig.context.random.sample_first = static_cast<std::uint32_t>(3 * group.rank());
      const ForwardCoordinates coordinates(rig.context, group, 4);
      const Value ours = cut.layer->forward(rig.context, Value{local_part(rig, group, x)});
      EXPECT_LT(
          distance(nn::floats(ours.tensor), nn::floats(local_part(rig, group, expected.tensor))),
          1e-6);
    });
}

}  // namespace
}  // namespace shoal::parallel
