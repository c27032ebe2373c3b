// Llama (Touvron et al., "LLaMA: Open and Efficient Foundation Language Models", 2023; key heads
// shared by groups: Llama 2 and 3), numerically transformers' LlamaForCausalLM.
// docs/llama-numerics.md has what is easy to get wrong.
#pragma once

#include <string>
#include <vector>

#include "shoal/nn/models/llama/trunk.h"

namespace shoal::nn {

// Its units: embeddings, each block, final norm and head.
class Llama final : public CausalLm {
 public:
  // Named and ready for materialize(); every weight matrix is drawn with std initializer_range.
  explicit Llama(const LlamaConfig& config);
  std::string_view kind() const override { return "Llama"; }
  const LlamaConfig& config() const { return trunk.config(); }
  std::string describe() const override { return "llama, " + trunk.describe(); }
  std::int64_t vocabulary() const override { return config().vocab_size; }
  std::int64_t positions() const override { return config().max_position_embeddings; }
  LoadReport load(const std::string& directory, const AssignParameter& assign) override;
  std::vector<std::string> save_config(const std::string& directory, DType dtype) const override;

  int units() const override { return trunk.units(); }
  std::string unit_name(int unit) const override { return trunk.unit_name(unit); }
  std::vector<Module*> unit_modules(int unit) const override;
  std::int64_t channels() const override { return config().hidden_size; }
  ResidualStream forward_unit(Context& context, int unit, ResidualStream stream,
                              const ChainInput& input) override;
  LossOutput forward_head(Context& context, ResidualStream stream,
                          const ChainInput& input) override;
  Tensor head_logits(Context& context, ResidualStream stream, const ChainInput& input) override;

  LlamaTrunk trunk;
  Slot<HeadLoss> lm_head;

 private:
  Value hidden_states(Context& context, const Tensor& ids, const Tensor& key_mask,
                      DecoderCache* cache) override;
  HeadLoss& head() override { return *lm_head; }
  std::int64_t key_width() const override {
    return config().key_heads() * config().head_channels();
  }
};

}  // namespace shoal::nn
