#include "shoal/nn/models/encoder_decoder/stack.h"

#include <cmath>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "shoal/nn/layers/decoder_layers.h"
#include "shoal/nn/layers/feed_forward.h"
#include "shoal/nn/layers/functional_internal.h"

namespace shoal::nn {
namespace {

// Dropout's coordinates need a bound of positions, which relative positions do not have.
constexpr std::int64_t kManyPositions = 1 << 20;

// The standard deviation of a weight; `inputs`: what T5 divides by the root of.
float std_of(const EncoderDecoderConfig& config, std::int64_t inputs) {
  const double divisor =
      config.family().scales_initializer ? std::sqrt(static_cast<double>(inputs)) : 1;
  return static_cast<float>(config.initializer / divisor);
}

std::unique_ptr<NormLike> make_norm(const EncoderDecoderConfig& config) {
  const auto epsilon = static_cast<float>(config.norm_eps);
  if (config.family().rms_norms) return std::make_unique<RmsNorm>(config.d_model, epsilon);
  return std::make_unique<LayerNorm>(config.d_model, epsilon);
}

std::unique_ptr<Dropout> make_dropout(double probability) {
  return std::make_unique<Dropout>(static_cast<float>(probability));
}

SelfAttentionConfig attention_config(const EncoderDecoderConfig& config, bool decoder, bool cross,
                                     RelativePositions* positions) {
  const EncoderDecoderFamily& family = config.family();
  const std::int64_t head = config.head_channels(decoder), heads = config.heads(decoder);
  const double dropout = family.one_dropout ? config.dropout : config.attention_dropout;
  return {
      .channels = config.d_model,
      .heads = heads,
      .max_positions = family.relative_positions ? kManyPositions : config.max_position_embeddings,
      .attention_dropout = static_cast<float>(dropout),
      .std = std_of(config, config.d_model),
      .query = std::string(family.query),
      .key = std::string(family.key),
      .value = std::string(family.value),
      .output = std::string(family.output),
      .head_dim = head,
      .scale = family.scaled_scores ? 0.0F : 1.0F,
      .query_std = std_of(config, config.d_model * head),
      .output_std = std_of(config, heads * head),
      .bias = family.biases,
      .causal = decoder && !cross,
      .cross = cross,
      .positions = cross ? nullptr : positions};
}

FeedForwardConfig mlp_config(const EncoderDecoderConfig& config, bool decoder) {
  const EncoderDecoderFamily& family = config.family();
  const double dropout = family.one_dropout ? config.dropout : config.activation_dropout;
  return {.channels = config.d_model,
          .inner = config.inner(decoder),
          .activation = config.activation_function(),
          .dropout = static_cast<float>(dropout),
          .std = std_of(config, config.d_model),
          .output_std = std_of(config, config.inner(decoder)),
          .bias = family.biases,
          .in = std::string(config.gated() ? family.gated_in : family.mlp_in),
          .gate = std::string(config.gated() ? family.gate : std::string_view()),
          .out = std::string(family.mlp_out)};
}

}  // namespace

StackEmbeddings::StackEmbeddings(const EncoderDecoderConfig& config)
    : scale_(config.scale_embedding ? std::sqrt(static_cast<float>(config.d_model)) : 1),
      offset_(config.family().position_offset) {
  const EncoderDecoderFamily& family = config.family();
  if (!family.relative_positions)
    positions_.emplace(
        *this, std::string(family.positions),
        std::make_unique<PositionEmbedding>(config.max_position_embeddings + offset_,
                                            config.d_model, std_of(config, config.d_model)));
  if (family.embedding_norm)
    norm_.emplace(*this, std::string(family.embedding_norm_name), make_norm(config));
  dropout_.emplace(*this, "embedding_dropout", make_dropout(config.dropout));
}

Value StackEmbeddings::forward(Context& context, EmbeddingLike& words, const Tensor& ids,
                               std::int64_t first) {
  Value x = words.forward(context, ids);
  if (scale_ != 1) x = scaled(context, x, scale_);
  // The words are one module, shared by both stacks.
  x = noisy_embedding(context, std::move(x), path_hash(), ids.shape()[1]);
  if (positions_) x = (*positions_)->forward(context, std::move(x), first + offset_);
  if (norm_) x = (*norm_)->forward(context, x);
  return (*dropout_)->forward(context, x);
}

template <class Kind>
void StackBlock::add(const EncoderDecoderConfig& config, SubLayer<Kind>& part,
                     std::string_view name, std::string_view norm, std::unique_ptr<Kind> layer) {
  part.layer.emplace(*this, std::string(name), std::move(layer));
  part.norm.emplace(*this, std::string(norm), make_norm(config));
  part.dropout.emplace(*this, fmt::format("{}.residual_dropout", norm),
                       make_dropout(config.dropout));
}

StackBlock::StackBlock(const EncoderDecoderConfig& config, bool decoder,
                       RelativePositions* positions)
    : pre_norm_(config.family().pre_norm) {
  const EncoderDecoderFamily& family = config.family();
  const StackBlockNames& names = decoder ? family.decoder : family.encoder;
  if (family.relative_positions && !positions) {
    positions_.emplace(*this, std::string(family.relative),
                       std::make_unique<RelativePositions>(
                           RelativePositionsConfig{.heads = config.heads(decoder),
                                                   .buckets = config.relative_buckets,
                                                   .max_distance = config.relative_distance,
                                                   .bidirectional = !decoder,
                                                   .std = std_of(config, config.d_model)}));
    positions = &**positions_;
  }
  const auto attention = [&](bool cross) -> std::unique_ptr<AttentionLike> {
    return std::make_unique<SelfAttention>(attention_config(config, decoder, cross, positions));
  };
  add(config, self_, names.self, names.self_norm, attention(false));
  if (decoder) add(config, cross_, names.cross, names.cross_norm, attention(true));
  add<MlpLike>(config, mlp_, names.mlp, names.mlp_norm,
               std::make_unique<FeedForward>(mlp_config(config, decoder)));
}

template <class Kind, class Call>
void StackBlock::run(Context& context, ResidualStream& stream, SubLayer<Kind>& part,
                     const Call& call) {
  NormLike& norm = **part.norm;
  const DropoutSite site = (*part.dropout)->site();
  if (pre_norm_) {
    const Value normed = stream.norm(context, norm);
    stream.branch = call(**part.layer, normed);
    stream.dropout = site;
    return;
  }
  const Value branch = call(**part.layer, stream.residual);
  stream.residual = norm.forward(context, stream.residual, branch, site).normed;
}

ResidualStream StackBlock::forward(Context& context, ResidualStream stream,
                                   const AttentionInput& input, AttentionInput cross) {
  run(context, stream, self_, [&](AttentionLike& attention, const Value& x) {
    return attention.forward(context, x, input);
  });
  if (cross_.layer) {
    // Kept keys and values stand for it.
    const bool kept = cross.encoded_keys && cross.encoded_keys->keys.defined();
    const Value encoded = kept ? Value{} : stream.encoded.value();
    cross.encoded = &encoded;
    run(context, stream, cross_, [&](AttentionLike& attention, const Value& x) {
      return attention.forward(context, x, cross);
    });
  }
  run(context, stream, mlp_, [&](MlpLike& mlp, const Value& x) { return mlp.forward(context, x); });
  return stream;
}

Stack::Stack(const EncoderDecoderConfig& config, bool decoder) {
  const EncoderDecoderFamily& family = config.family();
  embeddings_.emplace(*this, "", std::make_unique<StackEmbeddings>(config));
  for (std::int64_t layer = 0; layer < config.layers(decoder); ++layer)
    blocks_.emplace_back(*this, fmt::format("{}.{}", family.layers, layer),
                         std::make_unique<StackBlock>(
                             config, decoder, layer > 0 ? blocks_[0]->positions() : nullptr));
  if (!family.last_norm.empty())
    last_norm_.emplace(*this, std::string(family.last_norm), make_norm(config));
  if (family.drops_states)
    last_dropout_.emplace(*this, "last_dropout", make_dropout(config.dropout));
}

Value Stack::finish(Context& context, ResidualStream stream) {
  const Value x =
      last_norm_ ? stream.norm(context, **last_norm_) : std::move(stream).collapse(context);
  return last_dropout_ ? (*last_dropout_)->forward(context, x) : x;
}

}  // namespace shoal::nn
