// Decoders that classify texts or tokens, or find answers. Numerically equal to transformers'
// GPT2ForSequenceClassification, LlamaForTokenClassification ...
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include <nlohmann/json_fwd.hpp>

#include "shoal/nn/layers/task_head.h"
#include "shoal/nn/models/decoder/decoder.h"

namespace shoal::nn {

// Scores: sequence_classification [B, labels], from the state at the sample's end
// (ChainInput::ends); question_answering [B, T, 2]; token_classification [B, T, labels].
class HeadedDecoder final : public Decoder {
 public:
  // Names the module tree; call materialize() next. Any head but causal_lm.
  HeadedDecoder(std::unique_ptr<DecoderTrunk>&& trunk, DecoderHead head);
  std::string_view kind() const override { return "HeadedDecoder"; }
  DecoderTrunk& trunk() const override { return *base; }
  DecoderHead head_kind() const override { return head_kind_; }

  LossOutput forward(Context& context, const ChainInput& input) { return run(context, input); }
  // Evaluate mode, without a tape. Ignores targets.
  Tensor logits(Context& context, const ChainInput& input);

  LossOutput forward_head(Context& context, ResidualStream stream,
                          const ChainInput& input) override;
  Tensor head_logits(Context& context, ResidualStream stream, const ChainInput& input) override;

  Slot<DecoderTrunk> base;
  Slot<TaskHead> head;

 private:
  HeadedDecoder(std::string name, std::unique_ptr<DecoderTrunk>&& trunk, DecoderHead head);
  Module& head_module() const override { return *head; }
  DecoderHead head_kind_;
};

// Creates the model of a config.json by its model_type. Errors name `source`.
std::unique_ptr<HeadedDecoder> make_headed_decoder(const nlohmann::json& config,
                                                   std::string_view source, DecoderHead head);

}  // namespace shoal::nn
