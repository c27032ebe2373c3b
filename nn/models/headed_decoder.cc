#include "shoal/nn/models/headed_decoder.h"

#include <algorithm>
#include <utility>

#include "shoal/nn/models/decoder/family.h"
#include "shoal/nn/models/heads.h"
#include "shoal/nn/models/inference.h"
#include "shoal/runtime/base/error.h"

namespace shoal::nn {
namespace {

std::unique_ptr<TaskHead> make_head(const DecoderTrunk& trunk, DecoderHead head) {
  const DecoderFamily& family = trunk.family();
  SHOAL_CHECK(std::ranges::find(family.absent_heads, head) == family.absent_heads.end(),
              "{} for {} cannot be saved: transformers has no such class", family.title,
              to_string(head));
  const DecoderLabels& labels = trunk.config().labels;
  HeadSizes sizes{.channels = trunk.config().hidden_size,
                  .labels = labels.num_labels,
                  .std = trunk.initial_std()};
  switch (head) {
    case DecoderHead::sequence_classification:
      sizes.bias = false;
      return make_end_head("score", sizes, labels.regression());
    case DecoderHead::question_answering:
      return make_question_head("qa_outputs", sizes);
    case DecoderHead::token_classification:
      sizes.dropout = static_cast<float>(labels.token_dropout.value_or(0.1));
      return make_token_head(std::string(trunk.family().token_head), sizes);
    case DecoderHead::causal_lm:
      break;
  }
  throw_error(ErrorCode::internal, "a decoder for {} is a CausalLm", to_string(head));
}

}  // namespace

HeadedDecoder::HeadedDecoder(std::unique_ptr<DecoderTrunk>&& trunk, DecoderHead kind)
    : HeadedDecoder(std::string(trunk->base_name(kind)), std::move(trunk), kind) {}

HeadedDecoder::HeadedDecoder(std::string name, std::unique_ptr<DecoderTrunk>&& trunk,
                             DecoderHead kind)
    : base(*this, std::move(name), std::move(trunk)),
      head(*this, "", make_head(*base, kind)),
      head_kind_(kind) {
  name_tree();
}

Tensor HeadedDecoder::logits(Context& context, const ChainInput& input) {
  const Inference inference(context);
  context.begin_forward();
  return head_logits(context, forward_units(context, *this, 0, units() - 1, {}, input), input);
}

LossOutput HeadedDecoder::forward_head(Context& context, ResidualStream stream,
                                       const ChainInput& input) {
  return head->forward(context, stream.norm(context, base->last_norm()), input);
}

Tensor HeadedDecoder::head_logits(Context& context, ResidualStream stream,
                                  const ChainInput& input) {
  return head->logits(context, stream.norm(context, base->last_norm()), input).tensor;
}

std::unique_ptr<HeadedDecoder> make_headed_decoder(const nlohmann::json& config,
                                                   std::string_view source, DecoderHead head) {
  return std::make_unique<HeadedDecoder>(
      std::make_unique<DecoderTrunk>(DecoderConfig::from_json(config, source)), head);
}

}  // namespace shoal::nn
