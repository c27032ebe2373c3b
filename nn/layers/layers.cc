#include "shoal/nn/layers/layers.h"

#include <cmath>

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
  return linear(context, x, *weight_, bias_.get(), {true, config_.activation});
}

Conv1D::Conv1D(const LinearConfig& config) : config_(config) {
  weight_ = add_parameter("weight", {config.in, config.out}, normal(config.std));
  if (config.bias) bias_ = add_parameter("bias", {config.out}, zeros(), false);
}
Value Conv1D::forward(Context& context, const Value& x) {
  return linear(context, x, *weight_, bias_.get(), {false, config_.activation});
}

LayerNorm::LayerNorm(std::int64_t channels, float epsilon) : epsilon_(epsilon) {
  weight_ = add_parameter("weight", {channels}, ones(), false);
  bias_ = add_parameter("bias", {channels}, zeros(), false);
}
Value LayerNorm::forward(Context& context, const Value& x) {
  return layer_norm(context, x, *weight_, *bias_, epsilon_);
}
ResidualNorm LayerNorm::fork(Context& context, const Value& x) {
  return fork_layer_norm(context, x, *weight_, *bias_, epsilon_);
}
ResidualNorm LayerNorm::forward(Context& context, const Value& residual, const Value& branch,
                                const DropoutSite& site) {
  return residual_layer_norm(context, residual, branch, site, *weight_, *bias_, epsilon_);
}

Embedding::Embedding(std::int64_t rows, std::int64_t channels, float std, std::int64_t padding)
    : weight_(add_parameter("weight", {rows, channels}, normal(std))), padding_(padding) {}
Value Embedding::forward(Context& context, const Tensor& ids) {
  return embedding(context, ids, *weight_, padding_);
}

PositionEmbedding::PositionEmbedding(std::int64_t positions, std::int64_t channels, float std)
    : weight_(add_parameter("weight", {positions, channels}, normal(std))) {}
Value PositionEmbedding::forward(Context& context, Value x, std::int64_t first_position) {
  return add_positions(context, std::move(x), *weight_,
                       context.activation.first_position + first_position);
}

AddedEmbedding::AddedEmbedding(std::int64_t rows, std::int64_t channels, float std,
                               std::int64_t padding)
    : weight_(add_parameter("weight", {rows, channels}, normal(std))), padding_(padding) {}
Value AddedEmbedding::forward(Context& context, Value x, const Tensor& ids) {
  return add_embedding(context, std::move(x), *weight_, ids, padding_);
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
  if (input.cache) return c_proj->forward(context, attend_to_cache(context, qkv, input));
  AttentionOptions options;
  options.heads = config_.heads;
  options.scale = config_.scale;
  options.dropout = attn_dropout->site();
  options.max_positions = config_.max_positions;
  options.key_mask = input.key_mask;
  return c_proj->forward(context, attention(context, qkv, options));
}

Value CausalSelfAttention::attend_to_cache(Context& context, const Value& qkv,
                                           const AttentionInput& input) const {
  KeyValueCache& cache = *input.cache;
  const Shape& in = qkv.tensor.shape();
  const std::int64_t batch = in[0], fresh = in[1], channels = in[2] / 3;
  SHOAL_CHECK(!qkv.needs_gradient() && !context.training(),
              "a key-value cache serves inference: set evaluate mode and no tape");
  SHOAL_CHECK(cache.entries.defined() && cache.entries.shape()[0] == batch &&
                  cache.entries.shape()[2] == 2 * channels &&
                  cache.entries.dtype() == qkv.tensor.dtype(),
              "the key-value cache does not fit a batch of {} with {} channels", batch, channels);
  const std::int64_t capacity = cache.entries.shape()[1], length = cache.length + fresh;
  SHOAL_CHECK(length <= capacity, "{} positions in a key-value cache of {}", length, capacity);
  kernels::AttentionShape shape;
  shape.batch = batch;
  shape.heads = config_.heads;
  shape.query_length = fresh;
  shape.key_length = length;
  shape.head_dim = channels / config_.heads;
  shape.dtype = qkv.tensor.dtype();
  shape.causal = true;
  const Tensor key_mask = context.to_device(input.key_mask);
  if (key_mask.defined()) shape.key_mask = key_mask;
  shape.scale =
      config_.scale != 0 ? config_.scale : 1.0f / std::sqrt(static_cast<float>(shape.head_dim));
  const Tensor out = context.empty({batch, fresh, channels}, shape.dtype);
  context.run("attention.cached", {qkv.tensor, cache.entries, key_mask}, {out, cache.entries}, [&] {
    auto& elementwise = context.kernels().elementwise();
    for (std::int64_t b = 0; b < batch; ++b)
      for (std::int64_t t = 0; t < fresh; ++t) {
        const Tensor row =
            qkv.tensor.narrowed(0, b, 1).narrowed(1, t, 1).narrowed(2, channels, 2 * channels);
        const Tensor slot = cache.entries.narrowed(0, b, 1).narrowed(1, cache.length + t, 1);
        elementwise.cast(row, slot.view(), context.stream);
      }
    const auto at = [](const Tensor& tensor, std::int64_t column) -> kernels::HeadsView {
      return {static_cast<const std::byte*>(tensor.const_view().data) +
                  static_cast<std::size_t>(column) * size_of(tensor.dtype()),
              tensor.shape()[1] * tensor.shape()[2], tensor.shape()[2]};
    };
    context.kernels().attention().attention(
        shape, at(qkv.tensor, 0), at(cache.entries, 0), at(cache.entries, channels),
        {out.view().data, fresh * channels, channels}, View(), context.stream);
  });
  cache.length = length;
  return Value{out};
}

namespace {
std::unique_ptr<LinearLike> linear_or_conv(bool transposed, const LinearConfig& config) {
  if (transposed) return std::make_unique<Linear>(config);
  return std::make_unique<Conv1D>(config);
}
}  // namespace

SelfAttention::SelfAttention(const SelfAttentionConfig& config)
    : query(*this, config.query,
            std::make_unique<Linear>(
                LinearConfig{.in = config.channels, .out = config.channels, .std = config.std})),
      key(*this, config.key,
          std::make_unique<Linear>(
              LinearConfig{.in = config.channels, .out = config.channels, .std = config.std})),
      value(*this, config.value,
            std::make_unique<Linear>(
                LinearConfig{.in = config.channels, .out = config.channels, .std = config.std})),
      output(*this, config.output,
             std::make_unique<Linear>(
                 LinearConfig{.in = config.channels, .out = config.channels, .std = config.std})),
      dropout(*this, "dropout", std::make_unique<Dropout>(config.attention_dropout)),
      config_(config) {
  SHOAL_CHECK(config.heads > 0 && config.channels % config.heads == 0,
              "{} channels do not divide into {} heads", config.channels, config.heads);
}

Value SelfAttention::forward(Context& context, const Value& x, const AttentionInput& input) {
  SHOAL_CHECK(!input.cache, "{}: a key-value cache, where every position sees every other", path());
  AttentionOptions options;
  options.heads = config_.heads;
  options.causal = false;
  options.dropout = dropout->site();
  options.max_positions = config_.max_positions;
  options.key_mask = input.key_mask;
  const Value q = query->forward(context, x), k = key->forward(context, x),
              v = value->forward(context, x);
  return output->forward(context, attention(context, q, k, v, options));
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

LmHead::LmHead(const LmHeadConfig& config) : config_(config), weight_(config.tied) {
  if (weight_)
    share_parameter(config.weight, weight_);
  else
    weight_ =
        add_parameter(config.weight, {config.vocabulary, config.channels}, normal(config.std));
  if (config.bias) bias_ = add_parameter("bias", {weight_->shape()[0]}, zeros(), false);
}
LmHead::LmHead(std::shared_ptr<Parameter> tied) : LmHead(LmHeadConfig{.tied = std::move(tied)}) {}
LmHead::LmHead(std::int64_t vocabulary, std::int64_t channels, float std)
    : LmHead(LmHeadConfig{.vocabulary = vocabulary, .channels = channels, .std = std}) {}

LossOutput LmHead::forward(Context& context, const Value& hidden, const Tensor& targets,
                           const LossOptions& options) {
  LossResult result =
      linear_cross_entropy(context, hidden, *weight_, targets, options, bias_.get());
  return {std::move(result.loss), result.loss_sum, result.targets};
}

Tensor LmHead::logits(Context& context, const Tensor& hidden) {
  return linear(context, Value{hidden}, *weight_, bias_.get(), {true, kernels::Activation::none})
      .tensor;
}

}  // namespace shoal::nn
