#include "shoal/parallel/tensor/attention.h"

#include "shoal/nn/layers/functional_internal.h"
#include "shoal/nn/layers/relative_positions.h"
#include "shoal/parallel/tensor/exchange.h"
#include "shoal/parallel/tensor/linear.h"
#include "shoal/runtime/base/error.h"

namespace shoal::parallel {

TensorParallelAttention::TensorParallelAttention(const TensorParallel& group,
                                                 const nn::CausalSelfAttentionConfig& config)
    : c_attn(*this, "c_attn",
             std::make_unique<ColumnParallelLinear>(
                 group,
                 nn::LinearConfig{
                     .in = config.channels, .out = 3 * config.channels, .std = config.std},
                 false, 3)),
      c_proj(*this, "c_proj",
             std::make_unique<RowParallelLinear>(
                 group,
                 nn::LinearConfig{
                     .in = config.channels, .out = config.channels, .std = config.projection_std},
                 false)),
      attn_dropout(*this, "attn_dropout", std::make_unique<nn::Dropout>(config.attention_dropout)),
      group_(group),
      config_(config) {
  divided(config.heads, group, "heads", "");
}

nn::Value TensorParallelAttention::forward(nn::Context& context, const nn::Value& x,
                                           const nn::AttentionInput& input) {
  SHOAL_CHECK(x.tensor.shape().rank() == 3, "{}: an input {}, not [B, T, C]", path(),
              to_string(x.tensor.shape()));
  const nn::Value qkv = c_attn->forward(context, x);
  nn::AttentionOptions options;
  options.heads = config_.heads / group_.size();
  options.head_offset = group_.rank() * options.heads;
  options.scale = config_.scale;
  options.dropout = attn_dropout->site();
  options.max_positions = config_.max_positions;
  // Positions are not gathered: only the embedding uses them.
  const nn::AttentionInput all = gather_input(
      context, group_,
      {.key_mask = input.key_mask, .cache = input.cache, .sequences = input.sequences});
  options.key_mask = all.key_mask;
  options.sequences = all.sequences;
  nn::Value heads;
  {
    const GroupCoordinates coordinates(context, group_, x.tensor.shape()[0]);
    heads = input.cache ? cached_attention(context, qkv, *input.cache, options)
                        : attention(context, qkv, options);
  }
  return c_proj->forward(context, heads);
}

TensorParallelSelfAttention::TensorParallelSelfAttention(const TensorParallel& group,
                                                         const nn::SelfAttentionConfig& config)
    : query(*this, config.query, own_outputs(group, linears_of(config).query)),
      key(*this, config.key, own_outputs(group, linears_of(config).key)),
      value(*this, config.value, own_outputs(group, linears_of(config).key)),
      output(*this, config.output,
             std::make_unique<RowParallelLinear>(group, linears_of(config).output, true)),
      dropout(*this, "dropout", std::make_unique<nn::Dropout>(config.attention_dropout)),
      group_(group),
      config_(config) {
  divided(config.heads, group, "heads", "");
  if (!config.positions) return;
  share_parameter("relative_positions", config.positions->weight());
  config.positions->weight()->set_applies_to_part();
}

nn::Value TensorParallelSelfAttention::forward(nn::Context& context, const nn::Value& x,
                                               const nn::AttentionInput& input) {
  SHOAL_CHECK(x.tensor.shape().rank() == 3 && !input.sequences.defined(),
              "{}: an input {}, not [B, T, C], or packed sequences", path(),
              to_string(x.tensor.shape()));
  SHOAL_CHECK((input.encoded != nullptr) == config_.cross, "{}: {} an encoder's hidden states",
              path(), config_.cross ? "without" : "with");
  const nn::Value whole = enter(context, group_, x);
  nn::Value heads;
  {
    const GroupCoordinates coordinates(context, group_, x.tensor.shape()[0]);
    const nn::Value q = query->forward(context, whole);
    const nn::KeysAndValues seen = keys_and_values(input, [&]() -> nn::KeysAndValues {
      const nn::Value from = input.encoded ? enter(context, group_, *input.encoded) : whole;
      return {key->forward(context, from), value->forward(context, from)};
    });
    nn::AttentionInput all = input;
    // Caches of an encoder-decoder have the group's samples (nn/layers/decoding.h).
    all.key_mask = gather_input(context, group_, {.key_mask = input.key_mask}).key_mask;
    nn::AttentionOptions options =
        attention_options(context, config_, *dropout, all, q.tensor, seen.keys.tensor);
    options.heads = config_.heads / group_.size();
    options.head_offset = group_.rank() * options.heads;
    heads = attend_to(context, q, seen, all, options);
  }
  return output->forward(context, heads);
}

}  // namespace shoal::parallel
