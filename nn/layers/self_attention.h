// BERT's, BART's and T5's attention. Parameter names are Hugging Face's.
//
//   SelfAttention attention({.channels = 64, .heads = 4, .max_positions = 512});
//   const Value out = attention.forward(context, x, input);  // [B, T, 64] -> [B, T, 64]
#pragma once

#include <string>

#include "shoal/nn/layers/layers.h"

namespace shoal::nn {

class RelativePositions;

struct SelfAttentionConfig {  // configures the layer below
  std::int64_t channels = 0, heads = 1, max_positions = 0;
  float attention_dropout = 0, std = 0.02f;
  // Names of the children.
  std::string query = "query", key = "key", value = "value", output = "output";
  std::int64_t head_dim = 0;               // 0: channels / heads
  float scale = 0;                         // 0: 1 / sqrt(head size)
  float query_std = 0, output_std = 0;     // of these Linears' initial weights; 0: std
  bool bias = true, causal = false;        // bias: of the Linears
  bool cross = false;                      // keys and values come from AttentionInput::encoded
  RelativePositions* positions = nullptr;  // adds their bias to the scores; must outlive the layer
};

// BERT's, BART's and T5's attention, by four Linears. Without `causal`, every position sees every
// key that the mask allows.
class SelfAttention final : public AttentionLike {
 public:
  explicit SelfAttention(const SelfAttentionConfig& config);
  std::string_view kind() const override { return "SelfAttention"; }
  Value forward(Context& context, const Value& x, const AttentionInput& input) override;
  const SelfAttentionConfig& config() const { return config_; }

  Slot<LinearLike> query, key, value, output;
  Slot<Dropout> dropout;

 private:
  SelfAttentionConfig config_;
};

}  // namespace shoal::nn
