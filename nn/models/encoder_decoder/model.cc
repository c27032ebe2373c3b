#include "shoal/nn/models/encoder_decoder/model.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include <fmt/format.h>

#include "shoal/nn/layers/functional_internal.h"
#include "shoal/nn/layers/lm_head.h"
#include "shoal/nn/models/inference.h"
#include "shoal/runtime/base/error.h"

namespace shoal::nn {
namespace {

std::string below_base(const EncoderDecoderConfig& config, const char* name) {
  const std::string_view base = config.family().base;
  return base.empty() ? name : fmt::format("{}.{}", base, name);
}

std::unique_ptr<EmbeddingLike> make_embedding(const EncoderDecoderConfig& config) {
  config.check();
  const bool cold = config.family().padding_is_cold;
  return std::make_unique<Embedding>(config.vocab_size, config.d_model,
                                     static_cast<float>(config.initializer),
                                     cold ? config.pad_token_id.value_or(-1) : -1);
}

std::unique_ptr<HeadLoss> make_output_head(const EncoderDecoderConfig& config,
                                           EmbeddingLike& shared) {
  return std::make_unique<LmHead>(
      LmHeadConfig{.vocabulary = config.vocab_size,
                   .channels = config.d_model,
                   .std = static_cast<float>(config.initializer),
                   .tied = config.tie_word_embeddings ? shared.weight() : nullptr,
                   .weight = "lm_head.weight",
                   .constant_bias = std::string(config.family().logits_bias)});
}

// The decoder's activations hold the same share of its positions as the encoder's do of the ids'.
class DecoderPositions {
 public:
  DecoderPositions(Context& context, const ChainInput& input)
      : context_(context), before_(context.activation) {
    const Shape &ids = input.ids.shape(), &decoder = input.decoder_ids.shape();
    SHOAL_CHECK(ids.rank() == 2 && decoder.rank() == 2 && decoder[0] == ids[0] && ids[1] > 0,
                "an encoder-decoder takes ids [B, S] and decoder_ids [B, T], not {} and {}",
                to_string(ids), to_string(decoder));
    context.activation.first_position = before_.first_position * decoder[1] / ids[1];
  }
  ~DecoderPositions() { context_.activation = before_; }
  bool differ() const { return context_.activation.first_position != before_.first_position; }
  DecoderPositions(const DecoderPositions&) = delete;
  DecoderPositions& operator=(const DecoderPositions&) = delete;

 private:
  Context& context_;
  ActivationCoordinates before_;
};

}  // namespace

EncoderDecoder::EncoderDecoder(const EncoderDecoderConfig& config)
    : shared(*this, below_base(config, "shared"), make_embedding(config)),
      encoder(*this, below_base(config, "encoder"), std::make_unique<Stack>(config, false)),
      decoder(*this, below_base(config, "decoder"), std::make_unique<Stack>(config, true)),
      head(*this, "", make_output_head(config, *shared)),
      config_(config) {
  name_tree();
}

std::string EncoderDecoder::describe() const {
  return fmt::format("{}, {} and {} layers of width {}, {} heads, vocabulary {}",
                     config_.model_type, encoder->blocks(), decoder->blocks(), config_.d_model,
                     config_.encoder_heads, config_.vocab_size);
}

LossOutput EncoderDecoder::forward(Context& context, const ChainInput& input) {
  context.begin_forward();
  return forward_head(
      context,
      forward_units(context, *this, 0, units() - 1, {}, input, gradient_checkpointing_ ? 1 : 0),
      input);
}

Tensor EncoderDecoder::logits(Context& context, const ChainInput& input) {
  const Inference inference(context);
  context.begin_forward();
  return head_logits(context, forward_units(context, *this, 0, units() - 1, {}, input), input);
}

std::string EncoderDecoder::unit_name(int unit) const {
  if (unit == 0) return "embeddings";
  if (unit < border()) return fmt::format("encoder.{}", unit - 1);
  if (unit == border()) return "decoder.embeddings";
  return unit == units() - 1 ? "head" : fmt::format("decoder.{}", unit - border() - 1);
}

std::vector<Module*> EncoderDecoder::unit_modules(int unit) const {
  std::vector<Module*> modules;
  const auto add = [&](Module* module) {
    if (module) modules.push_back(module);
  };
  if (unit == 0) {
    add(&*shared);
    add(&encoder->embeddings());
  } else if (unit < border()) {
    add(&encoder->block(unit - 1));
  } else if (unit == border()) {
    add(encoder->last_norm());
    add(&*shared);
    add(&decoder->embeddings());
  } else if (unit < units() - 1) {
    add(&decoder->block(unit - border() - 1));
  } else {
    add(decoder->last_norm());
    add(&*head);
  }
  return modules;
}

std::vector<std::int64_t> EncoderDecoder::lengths(int unit, const ChainInput& input) const {
  const std::int64_t ids = input.ids.shape()[1];
  if (unit <= border()) return {ids};
  return {input.decoder_ids.shape()[1], ids};
}

ResidualStream EncoderDecoder::forward_unit(Context& context, int unit, ResidualStream stream,
                                            const ChainInput& input) {
  if (unit == 0)
    return {encoder->embeddings().forward(context, *shared, input.ids, 0), std::nullopt, {}};
  if (unit < border())
    return encoder->block(unit - 1).forward(context, std::move(stream),
                                            {.key_mask = input.key_mask}, {});
  if (unit == border()) {
    Value encoded = encoder->finish(context, std::move(stream));
    const DecoderPositions positions(context, input);
    return {decoder->embeddings().forward(context, *shared, input.decoder_ids, 0),
            std::nullopt,
            {},
            std::move(encoded)};
  }
  const DecoderPositions positions(context, input);
  ResidualStream out = decoder->block(unit - border() - 1)
                           .forward(context, std::move(stream), {.key_mask = input.decoder_mask},
                                    {.key_mask = input.key_mask});
  // A later sum would draw dropout with the encoder's positions.
  if (positions.differ()) return ResidualStream::of(std::move(out).carried(context));
  return out;
}

Value EncoderDecoder::hidden_states(Context& context, ResidualStream stream,
                                    const ChainInput& input) {
  const DecoderPositions positions(context, input);
  return last_states(context, std::move(stream));
}

Value EncoderDecoder::last_states(Context& context, ResidualStream stream) {
  const Value hidden = decoder->finish(context, std::move(stream));
  if (!config_.family().scales_tied_head || !config_.tie_word_embeddings) return hidden;
  return scaled(context, hidden, 1 / std::sqrt(static_cast<float>(config_.d_model)));
}

LossOutput EncoderDecoder::forward_head(Context& context, ResidualStream stream,
                                        const ChainInput& input) {
  return head->forward(context, hidden_states(context, std::move(stream), input), input.targets,
                       input.loss);
}

Tensor EncoderDecoder::head_logits(Context& context, ResidualStream stream,
                                   const ChainInput& input) {
  return head->logits(context, hidden_states(context, std::move(stream), input).tensor);
}

EncoderDecoderCache EncoderDecoder::encode(Context& context, const Tensor& ids,
                                           const Tensor& key_mask, std::int64_t capacity) {
  const Inference inference(context);
  context.begin_forward();
  ChainInput input;
  input.ids = ids;
  input.key_mask = key_mask;
  EncoderDecoderCache cache;
  cache.key_mask = context.to_device(key_mask);
  cache.encoded =
      encoder->finish(context, forward_units(context, *this, 0, border(), {}, input)).tensor;
  cache.crosses.resize(static_cast<std::size_t>(decoder->blocks()));
  cache.selves.resize(cache.crosses.size());
  for (KeyValueCache& layer : cache.selves) layer.capacity = capacity;
  return cache;
}

void EncoderDecoderCache::select(Context& context, std::span<const std::int64_t> rows,
                                 std::span<const std::int64_t> texts) {
  for (KeyValueCache& self : selves) select_rows(context, self, rows);
  encoded = {};  // the first decode() has made keys and values of it
  if (crosses.empty() || std::ssize(texts) == crosses[0].keys.shape()[0]) return;
  for (EncodedKeys& cross : crosses)
    for (Tensor* tensor : {&cross.keys, &cross.values})
      *tensor = selected_rows(context, *tensor, texts);
  if (key_mask.defined()) key_mask = selected_rows(context, key_mask, texts);
}

Tensor EncoderDecoder::decode(Context& context, const Tensor& ids, EncoderDecoderCache& cache) {
  const Inference inference(context);
  context.begin_forward();
  SHOAL_CHECK(ids.shape().rank() == 2 && ids.shape()[1] == 1, "decode takes ids [B, 1], not {}",
              to_string(ids.shape()));
  const std::int64_t first = cache.selves.empty() ? 0 : cache.selves[0].length;
  ResidualStream stream{decoder->embeddings().forward(context, *shared, ids, first),
                        std::nullopt,
                        {},
                        Value{cache.encoded}};
  for (int block = 0; block < decoder->blocks(); ++block) {
    const auto layer = static_cast<std::size_t>(block);
    stream = decoder->block(block).forward(
        context, std::move(stream), {.cache = &cache.selves[layer]},
        {.key_mask = cache.key_mask, .encoded_keys = &cache.crosses[layer]});
  }
  const Value hidden = last_states(context, std::move(stream));
  return head->logits(context, hidden.tensor.reshaped({ids.shape()[0], config_.d_model}));
}

Tensor shifted_right(const Tensor& targets, const EncoderDecoderConfig& config,
                     MemoryResource& memory) {
  SHOAL_CHECK(
      targets.dtype() == DType::i32 && targets.shape().rank() == 2 && targets.device().is_cpu(),
      "targets {} {} on {} to shift", to_string(targets.dtype()), to_string(targets.shape()),
      to_string(targets.device()));
  const std::int64_t length = targets.shape()[1];
  const auto start = static_cast<std::int32_t>(config.start_id()),
             padding = static_cast<std::int32_t>(config.pad_token_id.value_or(start));
  Tensor ids = Tensor::empty(targets.shape(), DType::i32, memory, MemoryTag::data);
  const auto* const from = targets.const_data<std::int32_t>();
  auto* const to = ids.data<std::int32_t>();
  for (std::int64_t i = 0; i < targets.count(); ++i)
    to[i] = i % length == 0 ? start : from[i - 1] < 0 ? padding : from[i - 1];
  if (!config.family().begins_with_last) return ids;
  for (std::int64_t i = 0; i < targets.count(); ++i)
    if (from[i] >= 0 && from[i] != padding) to[i / length * length] = from[i];
  return ids;
}

}  // namespace shoal::nn
