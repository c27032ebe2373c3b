#include "shoal/nn/models/encoder/layers.h"

#include <cmath>
#include <utility>

#include "shoal/kernels/kernels.h"
#include "shoal/nn/layers/feed_forward.h"
#include "shoal/nn/layers/functional_internal.h"
#include "shoal/nn/layers/self_attention.h"
#include "shoal/nn/models/decoder/rotary.h"
#include "shoal/runtime/base/error.h"

namespace shoal::nn {
namespace {

std::unique_ptr<AttentionLike> encoder_attention(const EncoderConfig& config, std::int64_t layer,
                                                 const EncoderRotary& rotary) {
  const EncoderFamily& family = encoder_family(config.model_type);
  const BlockNames& names = family.block;
  const auto dropout = static_cast<float>(config.attention_probs_dropout_prob);
  if (family.rotary)
    return std::make_unique<GroupedSelfAttention>(
        GroupedSelfAttentionConfig{.channels = config.hidden_size,
                                   .heads = config.num_attention_heads,
                                   .key_heads = config.num_attention_heads,
                                   .head_dim = config.hidden_size / config.num_attention_heads,
                                   .max_positions = config.max_position_embeddings,
                                   .attention_dropout = dropout,
                                   .std = std_of(config),
                                   .output_std = output_std_of(config),
                                   .bias = config.attention_bias,
                                   .output_bias = config.attention_bias,
                                   .causal = false,
                                   .fused = names.query,
                                   .output = names.attention_output,
                                   .by_part = true,
                                   .window = config.window(layer),
                                   .rotary = config.slides(layer) ? rotary.local : rotary.global});
  return std::make_unique<SelfAttention>(
      SelfAttentionConfig{.channels = config.hidden_size,
                          .heads = config.num_attention_heads,
                          .max_positions = config.max_position_embeddings,
                          .attention_dropout = dropout,
                          .std = std_of(config),
                          .query = names.query,
                          .key = names.key,
                          .value = names.value,
                          .output = names.attention_output});
}

std::unique_ptr<MlpLike> encoder_mlp(const EncoderConfig& config) {
  const EncoderFamily& family = encoder_family(config.model_type);
  const BlockNames& names = family.block;
  if (family.gated)
    return std::make_unique<FeedForward>(
        FeedForwardConfig{.channels = config.hidden_size,
                          .inner = config.intermediate_size,
                          .activation = encoder_activation(config.hidden_act),
                          .dropout = static_cast<float>(config.mlp_dropout),
                          .std = std_of(config),
                          .output_std = output_std_of(config),
                          .bias = config.mlp_bias,
                          .in = names.ffn_in,
                          .out = names.ffn_out,
                          .fused = true});
  return std::make_unique<Mlp>(MlpConfig{.channels = config.hidden_size,
                                         .inner = config.intermediate_size,
                                         .activation = encoder_activation(config.hidden_act),
                                         .std = std_of(config),
                                         .projection_std = std_of(config),
                                         .transposed = true,
                                         .c_fc = names.ffn_in,
                                         .c_proj = names.ffn_out});
}

}  // namespace

std::unique_ptr<LayerNorm> norm_of(std::int64_t channels, const EncoderConfig& config) {
  return std::make_unique<LayerNorm>(channels, static_cast<float>(config.layer_norm_eps),
                                     config.norm_bias);
}

float output_std_of(const EncoderConfig& config) {
  if (!encoder_family(config.model_type).scaled_residual) return std_of(config);
  return static_cast<float>(config.initializer_range /
                            std::sqrt(2.0 * static_cast<double>(config.num_hidden_layers)));
}

kernels::Activation encoder_activation(std::string_view name) {
  if (name == "relu") return kernels::Activation::relu;
  return name == "gelu" ? kernels::Activation::gelu_erf : kernels::Activation::gelu_tanh;
}

AddedEmbedding::AddedEmbedding(std::int64_t rows, std::int64_t channels, float std,
                               std::int64_t padding)
    : weight_(
          add_parameter("weight", {rows, channels}, Initializer{Initializer::Kind::normal, std})),
      padding_(padding) {}
Value AddedEmbedding::forward(Context& context, Value x, const Tensor& ids) {
  return add_embedding(context, std::move(x), *weight_, ids, padding_);
}

EncoderEmbeddings::EncoderEmbeddings(const EncoderConfig& config)
    : word_embeddings(
          *this, encoder_family(config.model_type).words,
          std::make_unique<Embedding>(config.vocab_size, config.embedding(), std_of(config),
                                      config.pad_token_id.value_or(-1))),
      norm(*this, encoder_family(config.model_type).embedding_norm,
           norm_of(config.embedding(), config)),
      dropout(*this, "embeddings.dropout",
              std::make_unique<Dropout>(static_cast<float>(config.hidden_dropout_prob))),
      config_(config) {
  const EncoderFamily& family = encoder_family(config.model_type);
  const std::int64_t width = config.embedding();
  constexpr const char* kPositions = "embeddings.position_embeddings";
  if (family.positions_from_ids)
    counted_positions.emplace(
        *this, kPositions,
        std::make_unique<AddedEmbedding>(config.max_position_embeddings, width, std_of(config),
                                         *config.pad_token_id));
  else if (!family.rotary)
    position_embeddings.emplace(
        *this, kPositions,
        std::make_unique<PositionEmbedding>(config.max_position_embeddings, width, std_of(config)));
  if (config.type_vocab_size > 0)
    token_type_embeddings.emplace(
        *this, "embeddings.token_type_embeddings",
        std::make_unique<AddedEmbedding>(config.type_vocab_size, width, std_of(config)));
  if (!family.mapping.empty() && (family.maps_equal || width != config.hidden_size))
    mapping.emplace(*this, family.mapping,
                    std::make_unique<Linear>(LinearConfig{
                        .in = width, .out = config.hidden_size, .std = std_of(config)}));
}

// The padding id is also the padding's position; other tokens count from the next position.
Tensor EncoderEmbeddings::positions_of(Context& context, const Tensor& ids) const {
  const std::int64_t length = ids.shape()[1], padding = *config_.pad_token_id;
  // Ids on a device are not checked here; the table's kernels report positions out of range.
  if (ids.device().is_cpu() && padding + length >= config_.max_position_embeddings)
    for (std::int64_t i = 0, last = padding; i < ids.count(); ++i) {
      if (i % length == 0) last = padding;
      last += ids.const_data<std::int32_t>()[i] == padding ? 0 : 1;
      SHOAL_CHECK(last < config_.max_position_embeddings,
                  "{}: position {} of a model of {}; shorten the sequence", path(), last,
                  config_.max_position_embeddings);
    }
  const Tensor here = context.to_device(ids), positions = context.empty(ids.shape(), DType::i32);
  context.run("count_positions", {here}, {positions}, [&] {
    context.kernels().embedding().count_positions(here, static_cast<std::int32_t>(padding),
                                                  positions.view(), context.stream);
  });
  return positions;
}

Value EncoderEmbeddings::forward(Context& context, const Tensor& ids, const Tensor& token_types) {
  SHOAL_CHECK(ids.shape().rank() == 2, "{} takes ids [B, T], not {}", path(),
              to_string(ids.shape()));
  if (token_types.defined() && !token_type_embeddings)
    throw Error(ErrorCode::invalid_argument,
                fmt::format("{} has no token types, and some are given", config_.model_type),
                "leave them out");
  Value x = word_embeddings->forward(context, ids);
  x = noisy_embedding(context, std::move(x), word_embeddings->path_hash(), ids.shape()[1]);
  if (token_type_embeddings)
    x = (*token_type_embeddings)
            ->forward(context, std::move(x),
                      token_types.defined()
                          ? token_types
                          : Tensor::zeros(ids.shape(), DType::i32, context.memory(),
                                          MemoryTag::activations, context.stream));
  if (counted_positions)
    x = (*counted_positions)->forward(context, std::move(x), positions_of(context, ids));
  else if (position_embeddings)
    x = (*position_embeddings)->forward(context, std::move(x), 0);
  else
    SHOAL_CHECK(ids.shape()[1] <= config_.max_position_embeddings,
                "{} of {} positions, of a model of {}; shorten the sequence", path(),
                ids.shape()[1], config_.max_position_embeddings);
  x = dropout->forward(context, norm->forward(context, x));
  return mapping ? (*mapping)->forward(context, x) : x;
}

EncoderRotary EncoderRotary::of(const EncoderConfig& config) {
  if (!encoder_family(config.model_type).rotary) return {};
  const auto table = [&](double theta) {
    return std::make_shared<RotaryTable>(RopeScaling{}.angles(
        theta, config.hidden_size / config.num_attention_heads, config.max_position_embeddings));
  };
  return {table(config.rope_theta), table(config.rope_local_theta)};
}

EncoderBlock::EncoderBlock(const EncoderConfig& config, std::int64_t layer,
                           const EncoderRotary& rotary)
    : attention(*this, encoder_family(config.model_type).block.attention,
                encoder_attention(config, layer, rotary)),
      attention_norm([&]() -> std::optional<Slot<NormLike>> {
        const EncoderFamily& family = encoder_family(config.model_type);
        if (family.norms_first && layer == 0) return std::nullopt;
        return std::optional<Slot<NormLike>>(std::in_place, *this, family.block.attention_norm,
                                             norm_of(config.hidden_size, config));
      }()),
      ffn(*this, encoder_family(config.model_type).block.ffn, encoder_mlp(config)),
      output_norm(*this, encoder_family(config.model_type).block.output_norm,
                  norm_of(config.hidden_size, config)),
      attention_dropout(
          *this, "attention_dropout",
          std::make_unique<Dropout>(static_cast<float>(encoder_family(config.model_type).norms_first
                                                           ? config.attention_probs_dropout_prob
                                                           : config.hidden_dropout_prob))),
      ffn_dropout(*this, "ffn_dropout",
                  std::make_unique<Dropout>(encoder_family(config.model_type).ffn_drops
                                                ? static_cast<float>(config.hidden_dropout_prob)
                                                : 0.0f)),
      norms_first_(encoder_family(config.model_type).norms_first) {}

ResidualStream EncoderBlock::forward(Context& context, ResidualStream stream,
                                     const AttentionInput& input) {
  if (norms_first_) {
    {
      const Value normed =
          attention_norm ? stream.norm(context, **attention_norm) : stream.residual;
      stream.branch = attention->forward(context, normed, input);
      stream.dropout = attention_dropout->site();
    }
    const Value normed = stream.norm(context, *output_norm);
    stream.branch = ffn->forward(context, normed);
    stream.dropout = ffn_dropout->site();
    return stream;
  }
  Value y;
  {
    const Value x = std::move(stream).collapse(context);
    const Value branch = attention->forward(context, x, input);
    y = (*attention_norm)->forward(context, x, branch, attention_dropout->site()).normed;
  }
  const Value branch = ffn->forward(context, y);
  return {output_norm->forward(context, y, branch, ffn_dropout->site()).normed, std::nullopt, {}};
}

void EncoderBlock::begin_use(Context& context, std::uint32_t use) const {
  const auto begin = [&](const auto& self, const Module& module) -> void {
    for (const Module::Child& child : module.children()) {
      if (dynamic_cast<const Dropout*>(child.module))
        context.ordinals[child.module->path_hash()] = use;
      self(self, *child.module);
    }
  };
  begin(begin, *this);
}

}  // namespace shoal::nn
