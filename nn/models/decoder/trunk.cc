#include "shoal/nn/models/decoder/trunk.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "shoal/nn/layers/feed_forward.h"
#include "shoal/nn/layers/functional_internal.h"
#include "shoal/nn/models/decoder/family.h"
#include "shoal/runtime/base/error.h"

namespace shoal::nn {
namespace {

float std_of(const DecoderConfig& config) { return static_cast<float>(config.initializer_range); }

// Standard deviation of the last layer of a block's branch.
float projection_std(const DecoderConfig& config, const DecoderFamily& family) {
  if (!family.scaled_residual) return std_of(config);
  return static_cast<float>(config.initializer_range /
                            std::sqrt(2.0 * static_cast<double>(config.num_hidden_layers)));
}

std::unique_ptr<NormLike> make_norm(const DecoderConfig& config, const DecoderFamily& family) {
  const auto epsilon = static_cast<float>(config.norm_eps);
  if (family.rms_norms)
    return std::make_unique<RmsNorm>(config.hidden_size, epsilon, family.norm_offset);
  return std::make_unique<LayerNorm>(config.hidden_size, epsilon);
}

std::unique_ptr<AttentionLike> make_attention(const DecoderConfig& config,
                                              const DecoderFamily& family, std::int64_t layer,
                                              const std::shared_ptr<RotaryTable>& rotary) {
  const auto dropout = static_cast<float>(config.attention_dropout);
  if (family.attention == DecoderFamily::Attention::fused)
    return std::make_unique<CausalSelfAttention>(
        CausalSelfAttentionConfig{.channels = config.hidden_size,
                                  .heads = config.num_attention_heads,
                                  .max_positions = config.max_position_embeddings,
                                  .scale = config.attention_scale(layer),
                                  .attention_dropout = dropout,
                                  .std = std_of(config),
                                  .projection_std = projection_std(config, family)});
  return std::make_unique<GroupedSelfAttention>(GroupedSelfAttentionConfig{
      .channels = config.hidden_size,
      .heads = config.num_attention_heads,
      .key_heads = config.key_heads(),
      .head_dim = config.head_channels(),
      .max_positions = config.max_position_embeddings,
      .attention_dropout = dropout,
      .std = std_of(config),
      .bias = config.attention_bias || family.query_biases,
      .output_bias = config.attention_bias,
      .fused = std::string(family.projections),
      .output = std::string(family.attention_output),
      .norm_epsilon = family.query_norms ? static_cast<float>(config.norm_eps) : 0,
      .norm_offset = family.norm_offset,
      .scale = config.query_pre_attn_scalar > 0
                   ? 1 / std::sqrt(static_cast<float>(config.query_pre_attn_scalar))
                   : 0,
      .soft_cap = static_cast<float>(config.attention_soft_cap.value_or(0)),
      .window = config.window(layer),
      .rotary = rotary});
}

kernels::Activation activation_of(const DecoderConfig& config, const DecoderFamily& family) {
  return config.hidden_act == "gelu" ? family.gelu : kernels::Activation::gelu_tanh;
}

std::unique_ptr<MlpLike> make_mlp(const DecoderConfig& config, const DecoderFamily& family) {
  const bool gated = family.mlp == DecoderFamily::Mlp::gated;
  if (gated && config.hidden_act != "silu")
    return std::make_unique<FeedForward>(
        FeedForwardConfig{.channels = config.hidden_size,
                          .inner = config.inner(),
                          .activation = activation_of(config, family),
                          .std = std_of(config),
                          .output_std = std_of(config),
                          .bias = config.mlp_bias,
                          .in = "gate_proj",
                          .gate = "up_proj",
                          .out = "down_proj"});
  if (gated)
    return std::make_unique<GatedMlp>(GatedMlpConfig{.channels = config.hidden_size,
                                                     .inner = config.inner(),
                                                     .std = std_of(config),
                                                     .bias = config.mlp_bias});
  return std::make_unique<Mlp>(MlpConfig{.channels = config.hidden_size,
                                         .inner = config.inner(),
                                         .activation = activation_of(config, family),
                                         .std = std_of(config),
                                         .projection_std = projection_std(config, family),
                                         .transposed = family.mlp == DecoderFamily::Mlp::plain,
                                         .c_fc = std::string(family.mlp_in),
                                         .c_proj = std::string(family.mlp_out)});
}

const DecoderFamily& checked_family(const DecoderConfig& config) {
  config.check();
  return config.family();
}

// As transformers has it: a factor of the parameters' dtype.
float rounded(float value, DType dtype) {
  if (dtype == DType::bf16) return static_cast<float>(bfloat16(value));
  return dtype == DType::f16 ? static_cast<float>(float16(value)) : value;
}

DropoutSite site_of(const std::optional<Slot<Dropout>>& dropout) {
  return dropout ? (*dropout)->site() : DropoutSite{};
}

}  // namespace

DecoderBlock::DecoderBlock(const DecoderConfig& config, std::int64_t layer,
                           const std::shared_ptr<RotaryTable>& rotary)
    : parallel_(config.parallel_residual) {
  const DecoderFamily& family = config.family();
  const auto dropout = [&] {
    return std::make_unique<Dropout>(static_cast<float>(config.hidden_dropout));
  };
  for (const auto& [part, view] : family.block) {
    const std::string name(view);
    switch (part) {
      case BlockPart::attention_norm:
        attention_norm_.emplace(*this, name, make_norm(config, family));
        break;
      case BlockPart::attention:
        attention_.emplace(*this, name, make_attention(config, family, layer, rotary));
        break;
      case BlockPart::attention_output_norm:
        attention_output_norm_.emplace(*this, name, make_norm(config, family));
        break;
      case BlockPart::attention_dropout:
        attention_dropout_.emplace(*this, name, dropout());
        break;
      case BlockPart::mlp_norm:
        mlp_norm_.emplace(*this, name, make_norm(config, family));
        break;
      case BlockPart::mlp:
        mlp_.emplace(*this, name, make_mlp(config, family));
        break;
      case BlockPart::mlp_output_norm:
        mlp_output_norm_.emplace(*this, name, make_norm(config, family));
        break;
      case BlockPart::mlp_dropout:
        mlp_dropout_.emplace(*this, name, dropout());
        break;
    }
  }
}

ResidualStream DecoderBlock::forward(Context& context, ResidualStream stream,
                                     const AttentionInput& input) {
  // Each norm adds the preceding branch. Values leave scope right after their use, so that memory
  // that backward does not need is freed here.
  std::optional<Value> beside;  // the MLP's input, if it is not after attention
  {
    const Value normed = stream.norm(context, **attention_norm_);
    if (parallel_) beside = stream.norm(context, **mlp_norm_);
    stream.branch = (*attention_)->forward(context, normed, input);
    if (attention_output_norm_)
      stream.branch = (*attention_output_norm_)->forward(context, *stream.branch);
    stream.dropout = site_of(attention_dropout_);
  }
  if (parallel_) stream = {std::move(stream).collapse(context), std::nullopt, {}};
  const Value normed = beside ? std::move(*beside) : stream.norm(context, **mlp_norm_);
  stream.branch = (*mlp_)->forward(context, normed);
  if (mlp_output_norm_) stream.branch = (*mlp_output_norm_)->forward(context, *stream.branch);
  stream.dropout = site_of(mlp_dropout_);
  return stream;
}

DecoderTrunk::DecoderTrunk(const DecoderConfig& config)
    : config_(config),
      family_(checked_family(config)),
      embedding_(*this, std::string(family_.embedding),
                 std::make_unique<Embedding>(
                     config.vocab_size, config.hidden_size, std_of(config),
                     family_.padding_is_cold ? config.pad_token_id.value_or(-1) : -1)) {
  if (!family_.positions.empty())
    positions_.emplace(*this, std::string(family_.positions),
                       std::make_unique<PositionEmbedding>(config.max_position_embeddings,
                                                           config.hidden_size, std_of(config)));
  if (!family_.dropout.empty())
    dropout_.emplace(*this, std::string(family_.dropout),
                     std::make_unique<Dropout>(static_cast<float>(config.embedding_dropout)));
  const auto rotary = family_.attention == DecoderFamily::Attention::grouped
                          ? std::make_shared<RotaryTable>(config.rotary_angles())
                          : nullptr;
  const auto local =
      config.rope_local_theta > 0 ? std::make_shared<RotaryTable>(config.local_angles()) : rotary;
  for (std::int64_t layer = 0; layer < config.num_hidden_layers; ++layer)
    layers_.emplace_back(
        *this, block_name(static_cast<int>(layer)),
        std::make_unique<DecoderBlock>(config, layer, config.slides(layer) ? local : rotary));
  norm_.emplace(*this, std::string(family_.norm), make_norm(config, family_));
}

std::string DecoderTrunk::describe() const {
  const bool grouped = family_.attention == DecoderFamily::Attention::grouped;
  return fmt::format("{} layers of width {}, {} heads{}, vocabulary {}, {} positions",
                     config_.num_hidden_layers, config_.hidden_size, config_.num_attention_heads,
                     grouped ? fmt::format(" on {} key heads", config_.key_heads()) : "",
                     config_.vocab_size, config_.max_position_embeddings);
}

std::string_view DecoderTrunk::base_name(DecoderHead head) const {
  return head == DecoderHead::question_answering ? family_.answers_base : family_.base;
}

std::vector<std::string_view> DecoderTrunk::base_names() const {
  if (family_.base == family_.answers_base) return {family_.base};
  return {family_.base, family_.answers_base};
}

bool DecoderTrunk::is_buffer(std::string_view bare) const {
  return std::ranges::any_of(family_.buffers,
                             [bare](std::string_view end) { return bare.ends_with(end); });
}

std::string DecoderTrunk::block_name(int block) const {
  return fmt::format("{}.{}", family_.layers, block);
}

std::vector<Module*> DecoderTrunk::embeddings() const {
  if (positions_) return {&*embedding_, &**positions_};
  return {&*embedding_};
}

Value DecoderTrunk::embed(Context& context, const Tensor& ids, std::int64_t first_position,
                          const Tensor& positions) {
  SHOAL_CHECK(ids.shape().rank() == 2 && ids.shape()[1] <= config_.max_position_embeddings,
              "{} takes ids [B, T], not {}, of at most {} positions; shorten the sequence",
              family_.title, to_string(ids.shape()), config_.max_position_embeddings);
  Value x = embedding_->forward(context, ids);
  if (family_.scaled_embedding)
    x = scaled(context, x,
               rounded(std::sqrt(static_cast<float>(config_.hidden_size)), x.tensor.dtype()));
  x = noisy_embedding(context, std::move(x), embedding_->path_hash(), ids.shape()[1]);
  if (positions_) x = (*positions_)->forward(context, std::move(x), first_position, positions);
  return dropout_ ? (*dropout_)->forward(context, x) : x;
}

ResidualStream DecoderTrunk::forward_block(Context& context, int block, ResidualStream stream,
                                           const AttentionInput& input) {
  return layers_[static_cast<std::size_t>(block)]->forward(context, std::move(stream), input);
}

}  // namespace shoal::nn
