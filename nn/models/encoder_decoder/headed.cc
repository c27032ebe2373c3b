#include "shoal/nn/models/encoder_decoder/headed.h"

#include <cmath>
#include <string>
#include <utility>

#include "shoal/nn/models/heads.h"
#include "shoal/runtime/base/error.h"

namespace shoal::nn {
namespace {

std::unique_ptr<TaskHead> make_stack_head(const EncoderDecoderConfig& config,
                                          const StackHead& place) {
  const auto dropout = static_cast<float>(config.classifier_dropout);
  HeadSizes sizes{.channels = config.d_model,
                  .labels = config.labels.num_labels,
                  .std = static_cast<float>(config.initializer)};
  if (config.family().scales_initializer && place.head != DecoderHead::token_classification)
    sizes.std /= std::sqrt(static_cast<float>(config.d_model));
  switch (place.head) {
    case DecoderHead::sequence_classification:
      sizes.dropout = sizes.first_dropout = dropout;
      sizes.transform = {.dense = "classification_head.dense",
                         .channels = config.d_model,
                         .width = config.d_model,
                         .activation = kernels::Activation::tanh,
                         .std = sizes.std};
      return make_end_head("classification_head.out_proj", sizes, config.labels.regression());
    case DecoderHead::question_answering:
      return make_question_head("qa_outputs", sizes);
    case DecoderHead::token_classification:
      sizes.dropout = dropout;
      return make_token_head("classifier", sizes);
    case DecoderHead::causal_lm:
      break;
  }
  throw_error(ErrorCode::internal, "an encoder-decoder for {} is an EncoderDecoder",
              to_string(place.head));
}

}  // namespace

HeadedEncoderDecoder::HeadedEncoderDecoder(const EncoderDecoderConfig& config, DecoderHead head)
    : EncoderDecoderBase(config, config.family().place_of(head)),
      head(*this, "", make_stack_head(config, config.family().place_of(head))),
      head_kind_(head) {
  name_tree();
}

LossOutput HeadedEncoderDecoder::forward_head(Context& context, ResidualStream stream,
                                              const ChainInput& input) {
  return head->forward(context, hidden_states(context, std::move(stream), input), input);
}

Tensor HeadedEncoderDecoder::head_logits(Context& context, ResidualStream stream,
                                         const ChainInput& input) {
  return head->logits(context, hidden_states(context, std::move(stream), input), input).tensor;
}

}  // namespace shoal::nn
