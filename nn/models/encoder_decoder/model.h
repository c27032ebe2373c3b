// Encoder-decoders with a language model's head, numerically equal to transformers'
// T5ForConditionalGeneration and BartForConditionalGeneration.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "shoal/nn/models/encoder_decoder/base.h"

namespace shoal::nn {

class EncoderDecoder final : public EncoderDecoderBase {
 public:
  // Names the module tree; call materialize() next.
  explicit EncoderDecoder(const EncoderDecoderConfig& config);
  std::string_view kind() const override { return "EncoderDecoder"; }
  DecoderHead head_kind() const override { return DecoderHead::causal_lm; }

  // Targets i32 [B, T]: what the decoder should predict.
  LossOutput forward_head(Context& context, ResidualStream stream,
                          const ChainInput& input) override;
  // [B, T, V]
  Tensor head_logits(Context& context, ResidualStream stream, const ChainInput& input) override;

  // "forced_bos_token_id" and so on, of generation_config.json or, without one, of config.json.
  std::optional<std::int64_t> generation_id(const std::string& name) const {
    return generation_.id(name, config().known_fields());
  }
  void set_generation_id(const std::string& name, std::int64_t id) { generation_.set(name, id); }

  Slot<HeadLoss> head;

 private:
  Module& head_module() const override { return *head; }
  Value scaled_for_head(Context& context, const Value& hidden) const;
};

// The decoder's ids for `targets` i32 [B, T] in host memory: the start id (mBART: the last target),
// then the targets, where ids without a target (negative) become padding.
Tensor shifted_right(const Tensor& targets, const EncoderDecoderConfig& config,
                     MemoryResource& memory);

}  // namespace shoal::nn
