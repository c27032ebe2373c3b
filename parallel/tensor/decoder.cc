#include "shoal/parallel/tensor/decoder.h"

#include "shoal/nn/layers/functional_internal.h"
#include "shoal/parallel/tensor/exchange.h"
#include "shoal/parallel/tensor/linear.h"
#include "shoal/runtime/base/error.h"

namespace shoal::parallel {

TensorParallelGroupedAttention::TensorParallelGroupedAttention(
    const TensorParallel& group, const nn::GroupedSelfAttentionConfig& config)
    : projections(*this, config,
                  [&group](const nn::LinearConfig& linear, int blocks) {
                    return own_outputs(group, linear, blocks);
                  }),
      output(*this, config.output,
             std::make_unique<RowParallelLinear>(group, config.output_config(), true)),
      dropout(*this, "attention_dropout", std::make_unique<nn::Dropout>(config.attention_dropout)),
      group_(group),
      config_(config) {
  divided(config.key_heads, group, "key heads", "");
  projections.add_norms(*this, config);
  for (const auto* norm : {&projections.query_norm, &projections.key_norm})
    if (*norm) (**norm)->parameters().front()->set_applies_to_part();
}

nn::Value TensorParallelGroupedAttention::forward(nn::Context& context, const nn::Value& x,
                                                  const nn::AttentionInput& input) {
  SHOAL_CHECK(x.tensor.shape().rank() == 3, "{}: an input {}, not [B, T, C]", path(),
              to_string(x.tensor.shape()));
  nn::AttentionInput all = gather_input(context, group_, input);
  all.cache = input.cache;
  nn::AttentionOptions options = attention_options(config_, *dropout, all);
  options.heads = config_.heads / group_.size();
  options.key_heads = config_.key_heads / group_.size();
  options.head_offset = group_.rank() * options.heads;
  const nn::Value whole = enter(context, group_, x);
  nn::Value heads;
  {
    const GroupCoordinates coordinates(context, group_, x.tensor.shape()[0]);
    heads = rotated_attention(context, projections, *config_.rotary, whole, all, options);
  }
  return output->forward(context, heads);
}

TensorParallelGatedMlp::TensorParallelGatedMlp(const TensorParallel& group,
                                               const nn::GatedMlpConfig& config)
    : gate_proj(*this, "gate_proj",
                own_outputs(group, {.in = config.channels,
                                    .out = config.inner,
                                    .bias = config.bias,
                                    .std = config.std})),
      up_proj(*this, "up_proj",
              own_outputs(group, {.in = config.channels,
                                  .out = config.inner,
                                  .bias = config.bias,
                                  .std = config.std})),
      down_proj(*this, "down_proj",
                std::make_unique<RowParallelLinear>(group,
                                                    nn::LinearConfig{.in = config.inner,
                                                                     .out = config.channels,
                                                                     .bias = config.bias,
                                                                     .std = config.std},
                                                    true)),
      group_(group) {}

nn::Value TensorParallelGatedMlp::forward(nn::Context& context, const nn::Value& x) {
  const nn::Value whole = enter(context, group_, x);
  nn::Value inner;
  {
    const GroupCoordinates coordinates(context, group_, x.tensor.shape()[0]);
    const nn::Value gate = gate_proj->forward(context, whole);
    inner = swiglu(context, gate, up_proj->forward(context, whole));
  }
  return down_proj->forward(context, inner);
}

}  // namespace shoal::parallel
