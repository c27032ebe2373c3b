#include "shoal/nn/layers/layers.h"

#include "shoal/kernels/kernels.h"
#include "shoal/nn/layers/conv1d.h"
#include "shoal/nn/layers/functional_internal.h"
#include "shoal/nn/layers/lora.h"
#include "shoal/nn/layers/relative_positions.h"
#include "shoal/runtime/base/error.h"

namespace shoal::nn {
namespace {
Initializer normal(float std) { return {Initializer::Kind::normal, std}; }
Initializer zeros() { return {Initializer::Kind::zeros, 0}; }
Initializer ones() { return {Initializer::Kind::ones, 0}; }
}  // namespace

ResidualNorm NormLike::forward(Context& context, const Value& residual, const Value& branch,
                               const DropoutSite& site) {
  const Value sum = dropout_add(context, branch, residual, site);
  return {sum, forward(context, sum)};
}

ResidualNorm NormLike::fork(Context& context, const Value& x) { return {x, forward(context, x)}; }

Linear::Linear(const LinearConfig& config) : config_(config) {
  weight_ = add_parameter("weight", {config.out, config.in}, normal(config.std));
  if (config.bias) bias_ = add_parameter("bias", {config.out}, zeros(), false);
}
Value Linear::forward(Context& context, const Value& x) {
  return adapted_linear(context, x, *weight_, bias_.get(), {true, config_.activation}, lora());
}

Conv1D::Conv1D(const LinearConfig& config) : config_(config) {
  weight_ = add_parameter("weight", {config.in, config.out}, normal(config.std));
  if (config.bias) bias_ = add_parameter("bias", {config.out}, zeros(), false);
}
Value Conv1D::forward(Context& context, const Value& x) {
  return adapted_linear(context, x, *weight_, bias_.get(), {false, config_.activation}, lora());
}

LayerNorm::LayerNorm(std::int64_t channels, float epsilon, bool bias)
    : epsilon_(epsilon), has_bias_(bias) {
  weight_ = add_parameter("weight", {channels}, ones(), false);
  if (bias) {
    bias_ = add_parameter("bias", {channels}, zeros(), false);
    return;
  }
  bias_ = std::make_shared<Parameter>("bias", Shape{channels}, zeros());
  bias_->set_trainable(false);
}
// The kernels' LayerNorm has a bias; without one they compute RMSNorm.
Parameter& LayerNorm::bias(const Context& context) {
  if (has_bias_) return *bias_;
  const Device device = context.kernels().device();
  const DType dtype = weight_->value.dtype();
  Tensor& value = bias_->value;
  if (value.defined() && value.dtype() == dtype && value.device() == device) return *bias_;
  value = {};
  memory_ = make_device_memory(device);
  value = Tensor::zeros(bias_->shape(), dtype, *memory_, MemoryTag::parameters, context.stream);
  return *bias_;
}
Value LayerNorm::forward(Context& context, const Value& x) {
  return layer_norm(context, x, *weight_, bias(context), epsilon_);
}
ResidualNorm LayerNorm::fork(Context& context, const Value& x) {
  return fork_layer_norm(context, x, *weight_, bias(context), epsilon_);
}
ResidualNorm LayerNorm::forward(Context& context, const Value& residual, const Value& branch,
                                const DropoutSite& site) {
  return residual_layer_norm(context, residual, branch, site, *weight_, bias(context), epsilon_);
}

Embedding::Embedding(std::int64_t rows, std::int64_t channels, float std, std::int64_t padding)
    : weight_(add_parameter("weight", {rows, channels}, normal(std))), padding_(padding) {}
Value Embedding::forward(Context& context, const Tensor& ids) {
  return embedding(context, ids, *weight_, padding_);
}

PositionEmbedding::PositionEmbedding(std::int64_t positions, std::int64_t channels, float std)
    : weight_(add_parameter("weight", {positions, channels}, normal(std))) {}
Value PositionEmbedding::forward(Context& context, Value x, std::int64_t first_position,
                                 const Tensor& positions) {
  if (positions.defined()) return add_embedding(context, std::move(x), *weight_, positions);
  return add_positions(context, std::move(x), *weight_,
                       context.activation.first_position + first_position);
}

CausalSelfAttention::CausalSelfAttention(const CausalSelfAttentionConfig& config)
    : c_attn(*this, "c_attn",
             std::make_unique<Conv1D>(LinearConfig{
                 .in = config.channels, .out = 3 * config.channels, .std = config.std})),
      c_proj(*this, "c_proj",
             std::make_unique<Conv1D>(LinearConfig{
                 .in = config.channels, .out = config.channels, .std = config.projection_std})),
      attn_dropout(*this, "attn_dropout", std::make_unique<Dropout>(config.attention_dropout)),
      config_(config) {
  SHOAL_CHECK(config.heads > 0 && config.channels % config.heads == 0,
              "{} channels do not divide into {} heads", config.channels, config.heads);
}

Value CausalSelfAttention::forward(Context& context, const Value& x, const AttentionInput& input) {
  const Value qkv = c_attn->forward(context, x);
  AttentionOptions options;
  options.heads = config_.heads;
  options.scale = config_.scale;
  options.dropout = attn_dropout->site();
  options.max_positions = config_.max_positions;
  options.key_mask = input.key_mask;
  options.sequences = input.sequences;
  return c_proj->forward(context, input.cache
                                      ? cached_attention(context, qkv, *input.cache, options)
                                      : attention(context, qkv, options));
}

namespace {
std::unique_ptr<LinearLike> linear_or_conv(bool transposed, const LinearConfig& config) {
  if (transposed) return std::make_unique<Linear>(config);
  return std::make_unique<Conv1D>(config);
}
}  // namespace

AttentionOptions attention_options(Context& context, const SelfAttentionConfig& config,
                                   const Dropout& dropout, const AttentionInput& input,
                                   const Tensor& queries, const Tensor& keys) {
  AttentionOptions options;
  options.heads = config.heads;
  options.causal = config.causal;
  options.scale = config.scale;
  options.dropout = dropout.site();
  options.max_positions = config.max_positions;
  options.key_mask = input.key_mask;
  if (config.positions)
    options.relative_bias = config.positions->bias(
        context, queries.shape()[1], keys.shape()[1] + (input.cache ? input.cache->length : 0));
  return options;
}

AttentionLinears linears_of(const SelfAttentionConfig& config) {
  const std::int64_t width = config.head_dim > 0 ? config.heads * config.head_dim : config.channels;
  SHOAL_CHECK(config.heads > 0 && width % config.heads == 0,
              "{} channels do not divide into {} heads", config.channels, config.heads);
  const auto linear = [&](std::int64_t in, std::int64_t out, float std) {
    return LinearConfig{
        .in = in, .out = out, .bias = config.bias, .std = std > 0 ? std : config.std};
  };
  return {.query = linear(config.channels, width, config.query_std),
          .key = linear(config.channels, width, 0),
          .output = linear(width, config.channels, config.output_std)};
}

SelfAttention::SelfAttention(const SelfAttentionConfig& config)
    : query(*this, config.query, std::make_unique<Linear>(linears_of(config).query)),
      key(*this, config.key, std::make_unique<Linear>(linears_of(config).key)),
      value(*this, config.value, std::make_unique<Linear>(linears_of(config).key)),
      output(*this, config.output, std::make_unique<Linear>(linears_of(config).output)),
      dropout(*this, "dropout", std::make_unique<Dropout>(config.attention_dropout)),
      config_(config) {
  if (config.positions) share_parameter("relative_positions", config.positions->weight());
}

Value SelfAttention::forward(Context& context, const Value& x, const AttentionInput& input) {
  SHOAL_CHECK(!input.sequences.defined(), "{}: packed sequences are of decoders", path());
  SHOAL_CHECK(!input.cache || (config_.causal && !config_.cross),
              "{}: a key-value cache, where positions see later ones", path());
  SHOAL_CHECK((input.encoded != nullptr) == config_.cross, "{}: {} an encoder's hidden states",
              path(), config_.cross ? "without" : "with");
  const auto projected = [&](LinearLike& linear, const Value& from) {
    return spread(context, linear.forward(context, from), input.visible);
  };
  const Value q = projected(*query, x);
  const KeysAndValues seen = keys_and_values(input, [&]() -> KeysAndValues {
    const Value& from = input.encoded ? *input.encoded : x;
    return {projected(*key, from), projected(*value, from)};
  });
  const AttentionOptions options =
      attention_options(context, config_, *dropout, input, q.tensor, seen.keys.tensor);
  const Value heads = attend_to(context, q, seen, input, options);
  return output->forward(context, without_padding(context, heads, input.visible));
}

Mlp::Mlp(const MlpConfig& config)
    : c_fc(*this, config.c_fc,
           linear_or_conv(config.transposed, LinearConfig{.in = config.channels,
                                                          .out = config.inner,
                                                          .std = config.std,
                                                          .activation = config.activation})),
      c_proj(*this, config.c_proj,
             linear_or_conv(config.transposed, LinearConfig{.in = config.inner,
                                                            .out = config.channels,
                                                            .std = config.projection_std})) {}

Value Mlp::forward(Context& context, const Value& x) {
  return c_proj->forward(context, c_fc->forward(context, x));
}

}  // namespace shoal::nn
