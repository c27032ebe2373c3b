// Llama (Touvron et al., "LLaMA: Open and Efficient Foundation Language Models", 2023; Llama 2 and
// 3 with grouped key heads), numerically equal to transformers' LlamaForCausalLM.
// docs/internals/llama-numerics.md lists the pitfalls.
#pragma once

#include <string_view>

#include "shoal/nn/models/causal_lm.h"
#include "shoal/nn/models/llama/trunk.h"

namespace shoal::nn {

class Llama final : public CausalLm {
 public:
  // Names the module tree; call materialize() next. Every weight matrix is drawn with std
  // initializer_range.
  explicit Llama(const LlamaConfig& config);
  std::string_view kind() const override { return "Llama"; }
  const LlamaConfig& config() const { return model->config(); }
  DecoderTrunk& trunk() const override { return *model; }

  Slot<LlamaTrunk> model;
  Slot<HeadLoss> lm_head;

 private:
  HeadLoss& head() const override { return *lm_head; }
};

}  // namespace shoal::nn
