// Each operation and layer: its gradients compared with finite differences, the CPU kernels with
// the reference, and bf16 with f32.
#include "nn/gradient_check.h"
#include <gmock/gmock.h>

#include "shoal/nn/layers/decoder_layers.h"
#include "shoal/nn/layers/feed_forward.h"
#include "shoal/nn/layers/functional_internal.h"
#include "shoal/nn/layers/lm_head.h"
#include "shoal/nn/layers/lora.h"
#include "shoal/nn/layers/relative_positions.h"

namespace shoal::nn {
namespace {

using kernels::Activation;
using Values = std::vector<Value>;

class Operations : public ::testing::TestWithParam<OperationCase> {};

std::unique_ptr<kernels::Kernels> cpu() { return testing::make_test_kernels(0); }
std::unique_ptr<kernels::Kernels> reference() { return kernels::make_reference_kernels(); }

void check_differences(const OperationCase& test, std::unique_ptr<kernels::Kernels> table) {
  Rig rig(std::move(table));
  Prepared prepared = test.prepare(rig, DType::f32);
  const Gradients actual = gradients_of(rig, prepared);
  std::size_t index = 0;
  const auto compare = [&](const Tensor& of) {
    const Tensor expected = difference(rig, prepared, of);
    EXPECT_TRUE(testing::close_in_norm(actual.names[index], actual.gradients[index], expected,
                                       test.difference_tolerance, 0.1));
    ++index;
  };
  for (const Tensor& input : prepared.inputs) compare(input);
  for (const auto& parameter : prepared.parameters)
    if (parameter->trainable()) compare(parameter->value);
  EXPECT_EQ(index, actual.gradients.size());
  EXPECT_GT(index, 0u);
}

TEST_P(Operations, ReferenceGradientsAreThoseOfFiniteDifferences) {
  check_differences(GetParam(), reference());
}
TEST_P(Operations, CpuGradientsAreThoseOfFiniteDifferences) {
  check_differences(GetParam(), cpu());
}

void expect_close(const Gradients& actual, const Gradients& expected, double tolerance,
                  double floor) {
  ASSERT_EQ(actual.outputs.size(), expected.outputs.size());
  ASSERT_EQ(actual.gradients.size(), expected.gradients.size());
  for (std::size_t i = 0; i < actual.outputs.size(); ++i)
    EXPECT_TRUE(testing::close_in_norm(fmt::format("output {}", i), actual.outputs[i],
                                       expected.outputs[i], tolerance));
  std::vector<ConstView> all(expected.gradients.begin(), expected.gradients.end());
  for (std::size_t i = 0; i < actual.gradients.size(); ++i)
    EXPECT_TRUE(testing::close_in_norm(actual.names[i], actual.gradients[i], expected.gradients[i],
                                       tolerance, floor * testing::global_norm_of(all)));
}

TEST_P(Operations, CpuEqualsTheReference) {
  Rig fast(cpu()), plain(reference());
  Prepared on_cpu = GetParam().prepare(fast, DType::f32);
  Prepared on_reference = GetParam().prepare(plain, DType::f32);
  expect_close(gradients_of(fast, on_cpu), gradients_of(plain, on_reference),
               GetParam().table_tolerance, 1e-3);
}

TEST_P(Operations, Bf16IsCloseToF32) {
  Rig narrow(cpu()), wide(reference());
  Prepared bf16 = GetParam().prepare(narrow, DType::bf16);
  Prepared f32 = GetParam().prepare(wide, DType::f32);
  const Gradients actual = gradients_of(narrow, bf16);
  expect_close(actual, gradients_of(wide, f32), GetParam().bf16_tolerance, 0.1);
  // Parameters' gradients are f32 sums for every dtype.
  for (const auto& parameter : bf16.parameters) EXPECT_EQ(parameter->gradient.dtype(), DType::f32);
}

TEST_P(Operations, RepeatToTheBit) {
  Rig rig(cpu());
  for (const DType dtype : {DType::f32, DType::bf16}) {
    Prepared prepared = GetParam().prepare(rig, dtype);
    Gradients first = gradients_of(rig, prepared);
    for (Tensor& gradient : first.gradients) gradient = rig.copy(gradient);
    const Gradients second = gradients_of(rig, prepared);
    for (std::size_t i = 0; i < first.outputs.size(); ++i)
      EXPECT_TRUE(same_bits(first.outputs[i], second.outputs[i])) << "output " << i;
    for (std::size_t i = 0; i < first.gradients.size(); ++i)
      EXPECT_TRUE(same_bits(first.gradients[i], second.gradients[i])) << first.names[i];
  }
}

// --- the cases ------------------------------------------------------------------------------

OperationCase linear_case(bool transposed, bool bias, Activation activation) {
  const char* const names[] = {"Plain", "Tanh", "Erf"};
  return {fmt::format("{}{}{}", transposed ? "Linear" : "Conv1d", bias ? "Bias" : "",
                      names[static_cast<int>(activation)]),
          [=](Rig& rig, DType dtype) {
            const auto weight =
                rig.parameter("weight", transposed ? Shape{7, 5} : Shape{5, 7}, 1, dtype);
            const auto b = bias ? rig.parameter("bias", {7}, 2, dtype) : nullptr;
            Prepared made{{rig.tensor({2, 3, 5}, 3, dtype)}, {weight}, {}, {}};
            if (bias) made.parameters.push_back(b);
            made.forward = [=](Context& context, const Values& in) -> Values {
              return {linear(context, in[0], *weight, b.get(), {transposed, activation})};
            };
            return made;
          }};
}

OperationCase frozen_linear(bool weight_learns) {
  return {weight_learns ? "LinearFrozenBias" : "LinearFrozenWeight", [=](Rig& rig, DType dtype) {
            const auto weight = rig.parameter("weight", {7, 5}, 1, dtype),
                       bias = rig.parameter("bias", {7}, 2, dtype);
            weight->set_trainable(weight_learns);
            bias->set_trainable(!weight_learns);
            return Prepared{{rig.tensor({6, 5}, 3, dtype)},
                            {weight, bias},
                            [=](Context& context, const Values& in) -> Values {
                              return {linear(context, in[0], *weight, bias.get(),
                                             {true, Activation::gelu_tanh})};
                            },
                            {}};
          }};
}

OperationCase norm_case(const std::string& name, bool gamma_learns, bool beta_learns) {
  return {name, [=](Rig& rig, DType dtype) {
            const auto gamma = rig.parameter("gamma", {9}, 1, dtype),
                       beta = rig.parameter("beta", {9}, 2, dtype);
            gamma->set_trainable(gamma_learns);
            beta->set_trainable(beta_learns);
            return Prepared{{rig.tensor({2, 3, 9}, 3, dtype)},
                            {gamma, beta},
                            [=](Context& context, const Values& in) -> Values {
                              return {layer_norm(context, in[0], *gamma, *beta, 1e-5f)};
                            },
                            {}};
          }};
}

// which: 0 both outputs, 1 only the sum, 2 only the normed one
OperationCase residual_norm_case(const std::string& name, float probability, int which) {
  return {name, [=](Rig& rig, DType dtype) {
            const auto gamma = rig.parameter("gamma", {9}, 1, dtype),
                       beta = rig.parameter("beta", {9}, 2, dtype);
            Prepared made{
                {rig.tensor({2, 3, 9}, 3, dtype), rig.tensor({2, 3, 9}, 4, dtype)}, {}, {}, {}};
            if (which != 1) made.parameters = {gamma, beta};
            made.forward = [=](Context& context, const Values& in) -> Values {
              const ResidualNorm out = residual_layer_norm(
                  context, in[0], in[1], {.probability = probability, .path_hash = 5}, *gamma,
                  *beta, 1e-5f);
              if (which == 1) return {out.sum};
              if (which == 2) return {out.normed};
              return {out.sum, out.normed};
            };
            return made;
          }};
}

OperationCase elementwise_case(const std::string& name,
                               const std::function<Value(Context&, const Values&)>& fn) {
  return {name, [=](Rig& rig, DType dtype) {
            return Prepared{
                {rig.tensor({2, 3, 9}, 3, dtype), rig.tensor({2, 3, 9}, 4, dtype)},
                {},
                [=](Context& context, const Values& in) -> Values { return {fn(context, in)}; },
                {}};
          }};
}

OperationCase embedding_case() {
  return {"EmbeddingAndPositions", [](Rig& rig, DType dtype) {
            const auto table = rig.parameter("table", {6, 5}, 1, dtype),
                       places = rig.parameter("places", {7, 5}, 2, dtype);
            const Tensor ids = rig.ids({5, 0, 5, 2, 5, 0}, {2, 3});
            return Prepared{
                {},
                {table, places},
                [=](Context& context, const Values&) -> Values {
                  return {add_positions(context, embedding(context, ids, *table), *places, 2)};
                },
                {}};
          }};
}

// Ids for x [2, 3, 5].
OperationCase with_ids(
    const char* name, const std::vector<std::int32_t>& values, const Shape& shape,
    const std::function<Values(Context&, const Values&, const Tensor&)>& operation) {
  return {name, [=](Rig& rig, DType dtype) {
            return Prepared{{rig.tensor({2, 3, 5}, 3, dtype)},
                            {},
                            [operation, ids = rig.ids(values, shape)](Context& context,
                                                                      const Values& in) -> Values {
                              return operation(context, in, ids);
                            },
                            {}};
          }};
}

// The second and the fourth position have no target.
OperationCase squared_error_case() {
  return {"SquaredError", [](Rig& rig, DType dtype) {
            const Tensor targets = rig.tensor({5}, 4);
            targets.data<float>()[1] = targets.data<float>()[3] =
                std::numeric_limits<float>::quiet_NaN();
            return Prepared{
                {rig.tensor({5, 1}, 3, dtype)},
                {},
                [=](Context& context, const Values& in) -> Values {
                  return {squared_error(context, in[0], targets, {.loss_scale = 0.5f}).loss};
                },
                {}};
          }};
}

OperationCase positions_case() {
  return {"PositionsOfAnInput", [](Rig& rig, DType dtype) {
            const auto places = rig.parameter("places", {7, 5}, 2, dtype);
            return Prepared{{rig.tensor({2, 3, 5}, 3, dtype)},
                            {places},
                            [=](Context& context, const Values& in) -> Values {
                              return {add_positions(context, in[0], *places, 4)};
                            },
                            {}};
          }};
}

OperationCase attention_case(const std::string& name, bool causal, bool mask, float dropout,
                             float scale) {
  return {name, [=](Rig& rig, DType dtype) {
            AttentionOptions options{.heads = 3, .causal = causal, .scale = scale};
            options.dropout = {.probability = dropout, .path_hash = 17};
            options.max_positions = 16;
            if (mask) {
              options.key_mask = Tensor::empty({2, 5}, DType::u8, rig.memory, MemoryTag::data);
              const std::uint8_t values[] = {1, 1, 0, 1, 0, 1, 0, 1, 1, 1};
              std::copy_n(values, 10, options.key_mask.data<std::uint8_t>());
            }
            return Prepared{{rig.tensor({2, 5, 3 * 3 * 4}, 3, dtype)},
                            {},
                            [=](Context& context, const Values& in) -> Values {
                              return {attention(context, in[0], options)};
                            },
                            {}};
          }};
}

OperationCase loss_case(const std::string& name, const LossOptions& options) {
  return {name, [=](Rig& rig, DType dtype) {
            const auto weight = rig.parameter("weight", {11, 5}, 1, dtype);
            const Tensor targets = rig.ids({0, -100, 10, 3, 3, -100}, {2, 3});
            return Prepared{
                {rig.tensor({2, 3, 5}, 3, dtype)},
                {weight},
                [=](Context& context, const Values& in) -> Values {
                  return {linear_cross_entropy(context, in[0], *weight, targets, options).loss};
                },
                {}};
          }};
}

// A layer whose parameters are set to new values, so that biases are not zero and norms not one.
template <typename Layer>
Prepared of_layer(Rig& rig, DType dtype, const std::shared_ptr<Layer>& layer,
                  std::vector<Tensor> inputs,
                  const std::function<Values(Context&, Layer&, const Values&)>& forward) {
  layer->name_tree("layer");
  Prepared made{std::move(inputs), {}, {}, layer};
  std::uint32_t seed = 50;
  for (Parameter* parameter : layer->parameters()) {
    rig.give(*parameter, seed++, dtype);
    made.parameters.emplace_back(layer, parameter);
  }
  made.forward = [raw = layer.get(), forward](Context& context, const Values& in) {
    return forward(context, *raw, in);
  };
  return made;
}

template <typename Layer>
Values call(Context& context, Layer& layer, const Values& in) {
  return {layer.forward(context, in[0])};
}

std::vector<OperationCase> layer_cases() {
  return {
      {"LinearLayer",
       [](Rig& rig, DType dtype) {
         return of_layer<Linear>(rig, dtype,
                                 std::make_shared<Linear>(LinearConfig{
                                     .in = 5, .out = 7, .activation = Activation::gelu_erf}),
                                 {rig.tensor({4, 5}, 3, dtype)}, &call<Linear>);
       }},
      {"Conv1dLayerWithoutBias",
       [](Rig& rig, DType dtype) {
         return of_layer<Conv1D>(
             rig, dtype, std::make_shared<Conv1D>(LinearConfig{.in = 5, .out = 7, .bias = false}),
             {rig.tensor({4, 5}, 3, dtype)}, &call<Conv1D>);
       }},
      {"LayerNormLayer",
       [](Rig& rig, DType dtype) {
         return of_layer<LayerNorm>(
             rig, dtype, std::make_shared<LayerNorm>(9, 1e-5f),
             {rig.tensor({2, 2, 9}, 3, dtype), rig.tensor({2, 2, 9}, 4, dtype)},
             [](Context& context, LayerNorm& norm, const Values& in) -> Values {
               const ResidualNorm out =
                   norm.forward(context, in[0], in[1], {.probability = 0.25f, .path_hash = 3});
               return {out.sum, norm.forward(context, out.normed)};
             });
       }},
      {"MlpLayer",
       [](Rig& rig, DType dtype) {
         return of_layer<Mlp>(rig, dtype,
                              std::make_shared<Mlp>(MlpConfig{.channels = 5, .inner = 12}),
                              {rig.tensor({2, 3, 5}, 3, dtype)}, &call<Mlp>);
       }},
      {"CausalSelfAttentionLayer",
       [](Rig& rig, DType dtype) {
         return of_layer<CausalSelfAttention>(
             rig, dtype,
             std::make_shared<CausalSelfAttention>(CausalSelfAttentionConfig{
                 .channels = 8, .heads = 2, .max_positions = 9, .attention_dropout = 0.2f}),
             {rig.tensor({2, 5, 8}, 3, dtype)},
             [](Context& context, CausalSelfAttention& layer, const Values& in) -> Values {
               return {layer.forward(context, in[0], {})};
             });
       },
       2e-3, 2e-5, 2e-2},
      {"LmHeadLayer",
       [](Rig& rig, DType dtype) {
         const Tensor targets = rig.ids({4, -100, 10, 0}, {2, 2});
         return of_layer<LmHead>(
             rig, dtype, std::make_shared<LmHead>(11, 5, 0.02f), {rig.tensor({2, 2, 5}, 3, dtype)},
             [targets](Context& context, LmHead& head, const Values& in) -> Values {
               return {head.forward(context, in[0], targets, {.loss_scale = 2}).loss};
             });
       }},
  };
}

// `config`: norms, window, and the heads' width, of which 6 channels turn.
OperationCase grouped_attention_case(const char* name, GroupedSelfAttentionConfig config) {
  config.channels = 7;
  config.heads = 4;
  config.key_heads = config.fused.empty() ? 2 : 4;
  if (config.head_dim == 0) config.head_dim = 6;
  config.max_positions = 9;
  config.attention_dropout = 0.2f;
  config.bias = config.output_bias = true;
  return {name,
          [config](Rig& rig, DType dtype) {
            GroupedSelfAttentionConfig with_table = config;  // the case outlives the devices
            with_table.rotary =
                std::make_shared<RotaryTable>(RotaryAngles{.frequencies = {1.0f, 0.3f, 0.1f}});
            return of_layer<GroupedSelfAttention>(
                rig, dtype, std::make_shared<GroupedSelfAttention>(with_table),
                {rig.tensor({2, 5, 7}, 3, dtype)},
                [](Context& context, GroupedSelfAttention& layer, const Values& in) -> Values {
                  return {layer.forward(context, in[0], {})};
                });
          },
          2e-3, 2e-5, 2e-2};
}

// Llama's layers, which include RMSNorm, SwiGLU, rotary positions, and heads that share a key head.
std::vector<OperationCase> decoder_layer_cases() {
  return {
      {"RmsNormLayer",
       [](Rig& rig, DType dtype) {
         return of_layer<RmsNorm>(
             rig, dtype, std::make_shared<RmsNorm>(9, 1e-5f),
             {rig.tensor({2, 2, 9}, 3, dtype), rig.tensor({2, 2, 9}, 4, dtype)},
             [](Context& context, RmsNorm& norm, const Values& in) -> Values {
               const ResidualNorm out =
                   norm.forward(context, in[0], in[1], {.probability = 0.25f, .path_hash = 3});
               const ResidualNorm fork = norm.fork(context, out.normed);
               return {out.sum, fork.sum, norm.forward(context, fork.normed)};
             });
       }},
      {"OffsetRmsNormLayer",
       [](Rig& rig, DType dtype) {
         return of_layer<RmsNorm>(
             rig, dtype, std::make_shared<RmsNorm>(9, 1e-5f, 1.0f),
             {rig.tensor({2, 2, 9}, 3, dtype), rig.tensor({2, 2, 9}, 4, dtype)},
             [](Context& context, RmsNorm& norm, const Values& in) -> Values {
               const ResidualNorm out = norm.forward(context, in[0], in[1], {});
               const ResidualNorm fork = norm.fork(context, out.normed);
               return {out.sum, fork.sum, norm.forward(context, fork.normed)};
             });
       }},
      {"GatedMlpLayer",
       [](Rig& rig, DType dtype) {
         return of_layer<GatedMlp>(
             rig, dtype,
             std::make_shared<GatedMlp>(GatedMlpConfig{.channels = 5, .inner = 12, .bias = true}),
             {rig.tensor({2, 3, 5}, 3, dtype)}, &call<GatedMlp>);
       }},
      grouped_attention_case("GroupedSelfAttentionLayer", {}),
      grouped_attention_case("NormedSelfAttentionLayer", {.norm_epsilon = 1e-5f, .window = 3}),
      grouped_attention_case("ScaledSelfAttentionLayer",
                             {.norm_epsilon = 1e-5f, .norm_offset = 1, .scale = 0.7f}),
      grouped_attention_case("CappedSelfAttentionLayer", {.soft_cap = 2, .window = 3}),
      grouped_attention_case("PartlyRotarySelfAttentionLayer",
                             {.head_dim = 10, .fused = "query_key_value", .output = "dense"}),
      grouped_attention_case("TwoSidedSelfAttentionLayer", {.output_std = 0.01f,
                                                            .causal = false,
                                                            .fused = "Wqkv",
                                                            .output = "Wo",
                                                            .by_part = true,
                                                            .window = 2}),
      {"LayerNormWithoutBias",
       [](Rig& rig, DType dtype) {
         return of_layer<LayerNorm>(
             rig, dtype, std::make_shared<LayerNorm>(9, 1e-5f, false),
             {rig.tensor({2, 2, 9}, 3, dtype), rig.tensor({2, 2, 9}, 4, dtype)},
             [](Context& context, LayerNorm& norm, const Values& in) -> Values {
               const ResidualNorm out =
                   norm.forward(context, in[0], in[1], {.probability = 0.25f, .path_hash = 3});
               const ResidualNorm fork = norm.fork(context, out.normed);
               return {out.sum, fork.sum, norm.forward(context, fork.normed)};
             });
       }},
  };
}

// A layer of an encoder-decoder with the table of relative positions that it shares.
struct RelativeAttention final : Module {
  explicit RelativeAttention(SelfAttentionConfig config)
      : positions(
            *this, "positions",
            std::make_unique<RelativePositions>(RelativePositionsConfig{
                .heads = 3, .buckets = 8, .max_distance = 6, .bidirectional = !config.causal})),
        attention(*this, "attention", [&] {
          config.positions = &*positions;
          return std::make_unique<SelfAttention>(config);
        }()) {}
  std::string_view kind() const override { return "RelativeAttention"; }
  Slot<RelativePositions> positions;
  Slot<SelfAttention> attention;
};

// The layers of T5 and BART: attention with relative positions, to other states, and the MLP.
std::vector<OperationCase> encoder_decoder_cases() {
  std::vector<OperationCase> all;
  for (const bool causal : {false, true})
    all.push_back(
        {causal ? "RelativeCausalAttentionLayer" : "RelativeAttentionLayer",
         [causal](Rig& rig, DType dtype) {
           return of_layer<RelativeAttention>(
               rig, dtype,
               std::make_shared<RelativeAttention>(SelfAttentionConfig{.channels = 5,
                                                                       .heads = 3,
                                                                       .max_positions = 20,
                                                                       .attention_dropout = 0.2f,
                                                                       .head_dim = 4,
                                                                       .scale = 1,
                                                                       .bias = false,
                                                                       .causal = causal}),
               {rig.tensor({2, 9, 5}, 3, dtype)},
               [](Context& context, RelativeAttention& layer, const Values& in) -> Values {
                 return {layer.attention->forward(context, in[0], {})};
               });
         },
         2e-3, 2e-5, 3e-2});
  all.push_back(
      {"CrossAttentionLayer", [](Rig& rig, DType dtype) {
         const Tensor lengths = rig.ids({5, 3}, {2});
         return of_layer<SelfAttention>(
             rig, dtype,
             std::make_shared<SelfAttention>(SelfAttentionConfig{
                 .channels = 6, .heads = 2, .max_positions = 20, .cross = true}),
             {rig.tensor({2, 3, 6}, 3, dtype), rig.tensor({2, 5, 6}, 4, dtype)},
             [lengths](Context& context, SelfAttention& layer, const Values& in) -> Values {
               return {layer.forward(context, in[0], {.key_mask = lengths, .encoded = &in[1]})};
             });
       }});
  for (const auto& [name, gate, fused] : {std::tuple{"FeedForwardLayer", "", false},
                                          std::tuple{"GatedFeedForwardLayer", "gate", false},
                                          std::tuple{"FusedFeedForwardLayer", "", true}})
    all.push_back(
        {name,
         [gate, fused](Rig& rig, DType dtype) {
           return of_layer<FeedForward>(
               rig, dtype,
               std::make_shared<FeedForward>(FeedForwardConfig{.channels = 5,
                                                               .inner = 12,
                                                               .activation = Activation::gelu_tanh,
                                                               .dropout = 0.3f,
                                                               .gate = gate,
                                                               .fused = fused}),
               {rig.tensor({2, 3, 5}, 3, dtype)}, &call<FeedForward>);
         },
         2e-3, 2e-5, 2e-2});
  all.push_back({"CappedHeadOfConstantBias", [](Rig& rig, DType dtype) {
                   const Tensor targets = rig.ids({4, -100, 10, 0}, {2, 2});
                   auto head = std::make_shared<LmHead>(LmHeadConfig{
                       .vocabulary = 11, .channels = 5, .constant_bias = "bias", .soft_cap = 0.6f});
                   return of_layer<LmHead>(
                       rig, dtype, head, {rig.tensor({2, 2, 5}, 3, dtype)},
                       [targets](Context& context, LmHead& layer, const Values& in) -> Values {
                         return {layer.forward(context, in[0], targets, {}).loss};
                       });
                 }});
  return all;
}

// An adapted layer, frozen but for its factors. Two calls, so that the input has another reader.
template <typename Layer>
OperationCase lora_case(const char* name, float dropout, Activation activation) {
  return {name,
          [=](Rig& rig, DType dtype) {
            auto layer =
                std::make_shared<Layer>(LinearConfig{.in = 5, .out = 7, .activation = activation});
            for (Parameter* parameter : layer->parameters()) parameter->set_trainable(false);
            layer->adapt({.r = 3, .scale = 0.5f, .dropout = dropout});
            return of_layer<Layer>(
                rig, dtype, layer, {rig.tensor({2, 3, 5}, 3, dtype)},
                [](Context& context, Layer& adapted, const Values& in) -> Values {
                  return {adapted.forward(context, in[0]), adapted.forward(context, in[0])};
                });
          },
          1e-3, 2e-5, 3e-2};
}

std::vector<OperationCase> cases() {
  std::vector<OperationCase> all;
  for (const bool transposed : {false, true})
    for (const bool bias : {false, true})
      for (const Activation kind : {Activation::none, Activation::gelu_tanh, Activation::gelu_erf})
        all.push_back(linear_case(transposed, bias, kind));
  all.push_back(frozen_linear(false));
  all.push_back(frozen_linear(true));
  all.push_back(norm_case("LayerNorm", true, true));
  all.push_back(norm_case("LayerNormFrozenGamma", false, true));
  all.push_back(norm_case("LayerNormFrozenBeta", true, false));
  all.push_back(residual_norm_case("ResidualNorm", 0, 0));
  all.push_back(residual_norm_case("ResidualNormDropout", 0.3f, 0));
  all.push_back(residual_norm_case("ResidualNormSumAlone", 0.3f, 1));
  all.push_back(residual_norm_case("ResidualNormNormedAlone", 0.3f, 2));
  const DropoutSite site{.probability = 0.4f, .path_hash = 7};
  all.push_back(elementwise_case("Dropout", [=](Context& context, const Values& in) {
    return add(context, dropout(context, in[0], site), in[1]);
  }));
  all.push_back(elementwise_case("DropoutAdd", [=](Context& context, const Values& in) {
    return dropout_add(context, in[0], in[1], site);
  }));
  all.push_back(elementwise_case("AddOneTwice", [](Context& context, const Values& in) {
    return add(context, add(context, in[0], in[0]), in[1]);
  }));
  all.push_back(with_ids("RowsByNumber", {4, 0, -1, 2}, {4},
                         [](Context& context, const Values& in, const Tensor& numbers) -> Values {
                           return {rows_at(context, in[0], numbers)};
                         }));
  all.push_back(with_ids("PositionsOfSamples", {2, 0}, {2},
                         [](Context& context, const Values& in, const Tensor& places) -> Values {
                           return {positions_at(context, in[0], places)};
                         }));
  all.push_back(with_ids("OnePositionOfSamples", {0}, {1},
                         [](Context& context, const Values& in, const Tensor&) -> Values {
                           return {position_of_all(context, in[0], 1)};
                         }));
  all.push_back(squared_error_case());
  all.push_back(embedding_case());
  all.push_back(positions_case());
  all.push_back(attention_case("AttentionCausal", true, false, 0, 0));
  all.push_back(attention_case("AttentionFull", false, false, 0, 0));
  all.push_back(attention_case("AttentionMasked", false, true, 0, 0));
  all.push_back(attention_case("AttentionCausalMaskedDropout", true, true, 0.3f, 0));
  all.push_back(attention_case("AttentionScaled", true, false, 0, 1.25f));
  all.push_back(loss_case("Loss", {}));
  all.push_back(loss_case("LossScaled", {.loss_scale = 0.25f}));
  all.push_back(loss_case("LossSmoothed", {.loss_scale = 3, .label_smoothing = 0.1f}));
  for (OperationCase& test : layer_cases()) all.push_back(std::move(test));
  for (OperationCase& test : decoder_layer_cases()) all.push_back(std::move(test));
  for (OperationCase& test : encoder_decoder_cases()) all.push_back(std::move(test));
  all.push_back(lora_case<Linear>("AdaptedLinear", 0, Activation::none));
  all.push_back(lora_case<Linear>("AdaptedLinearDropout", 0.3f, Activation::gelu_tanh));
  all.push_back(lora_case<Conv1D>("AdaptedConv1d", 0.3f, Activation::none));
  all.push_back(lora_case<Conv1D>("AdaptedConv1dActivation", 0, Activation::gelu_erf));
  all.push_back(elementwise_case("MultiplyScaled", [](Context& context, const Values& in) {
    return multiply(context, scaled(context, in[0], 1.5f), in[1]);
  }));
  return all;
}

INSTANTIATE_TEST_SUITE_P(All, Operations, ::testing::ValuesIn(cases()),
                         [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace shoal::nn
