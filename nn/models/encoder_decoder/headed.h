// Encoder-decoders that classify texts or tokens, or find answers. Numerically equal to
// transformers' BartForSequenceClassification, T5ForTokenClassification ...
#pragma once

#include <string_view>

#include "shoal/nn/layers/task_head.h"
#include "shoal/nn/models/encoder_decoder/base.h"

namespace shoal::nn {

// The decoder reads the encoder's ids, shifted by one (shifted_right()). Scores:
// sequence_classification [B, labels], from the decoder's state at the sample's end
// (ChainInput::ends); question_answering [B, T, 2]; token_classification [B, T, labels].
class HeadedEncoderDecoder final : public EncoderDecoderBase {
 public:
  // Names the module tree; call materialize() next. Any head but causal_lm. Throws invalid_argument
  // if transformers has no such class.
  HeadedEncoderDecoder(const EncoderDecoderConfig& config, DecoderHead head);
  std::string_view kind() const override { return "HeadedEncoderDecoder"; }
  DecoderHead head_kind() const override { return head_kind_; }

  LossOutput forward_head(Context& context, ResidualStream stream,
                          const ChainInput& input) override;
  Tensor head_logits(Context& context, ResidualStream stream, const ChainInput& input) override;

  Slot<TaskHead> head;

 private:
  Module& head_module() const override { return *head; }
  DecoderHead head_kind_;
};

}  // namespace shoal::nn
