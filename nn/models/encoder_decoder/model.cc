#include "shoal/nn/models/encoder_decoder/model.h"

#include <cmath>
#include <utility>

#include "shoal/nn/layers/functional_internal.h"
#include "shoal/nn/layers/lm_head.h"
#include "shoal/runtime/base/error.h"

namespace shoal::nn {
namespace {

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

}  // namespace

EncoderDecoder::EncoderDecoder(const EncoderDecoderConfig& config)
    : EncoderDecoderBase(config, {.base = config.family().base}),
      head(*this, "", make_output_head(config, *shared)) {
  name_tree();
}

Value EncoderDecoder::scaled_for_head(Context& context, const Value& hidden) const {
  if (!config().family().scales_tied_head || !config().tie_word_embeddings) return hidden;
  return scaled(context, hidden, 1 / std::sqrt(static_cast<float>(config().d_model)));
}

LossOutput EncoderDecoder::forward_head(Context& context, ResidualStream stream,
                                        const ChainInput& input) {
  const Value hidden = hidden_states(context, std::move(stream), input);
  return head->forward(context, scaled_for_head(context, hidden), input.targets, input.loss);
}

Tensor EncoderDecoder::head_logits(Context& context, ResidualStream stream,
                                   const ChainInput& input) {
  const Value hidden = hidden_states(context, std::move(stream), input);
  return head->logits(context, scaled_for_head(context, hidden).tensor);
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
