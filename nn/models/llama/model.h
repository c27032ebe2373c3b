// Llama (Touvron et al., "LLaMA: Open and Efficient Foundation Language Models", 2023; key heads
// shared by groups: Llama 2 and 3), numerically transformers' LlamaForCausalLM.
// docs/llama-numerics.md has what is easy to get wrong.
#pragma once

#include <deque>
#include <string>
#include <vector>

#include "shoal/nn/layers/decoder_layers.h"
#include "shoal/nn/models/causal_lm.h"
#include "shoal/nn/models/llama/config.h"

namespace shoal::nn {

class LlamaBlock final : public Module {
 public:
  LlamaBlock(const LlamaConfig& config, std::shared_ptr<RotaryTable> rotary);
  std::string_view kind() const override { return "LlamaBlock"; }
  ResidualStream forward(Context& context, ResidualStream stream, const AttentionInput& input);

  Slot<AttentionLike> self_attn;
  Slot<MlpLike> mlp;
  Slot<NormLike> input_layernorm, post_attention_layernorm;
};

// Its units: embeddings, each block, final norm and head.
class Llama final : public CausalLm {
 public:
  // Named and ready for materialize(); every weight matrix is drawn with std initializer_range.
  explicit Llama(const LlamaConfig& config);
  std::string_view kind() const override { return "Llama"; }
  const LlamaConfig& config() const { return config_; }
  std::string describe() const override;
  std::int64_t vocabulary() const override { return config_.vocab_size; }
  std::int64_t positions() const override { return config_.max_position_embeddings; }
  // Names with and without "model." are accepted; older versions' buffers (rotary_emb.inv_freq) and
  // a tied head's copy are passed over.
  LoadReport load(const std::string& directory, const AssignParameter& assign) override;
  std::vector<std::string> save_config(const std::string& directory, DType dtype) const override;

  int units() const override { return static_cast<int>(config_.num_hidden_layers) + 2; }
  std::string unit_name(int unit) const override;
  std::vector<Module*> unit_modules(int unit) const override;
  std::int64_t channels() const override { return config_.hidden_size; }
  ResidualStream forward_unit(Context& context, int unit, ResidualStream stream,
                              const ChainInput& input) override;
  LossOutput forward_head(Context& context, ResidualStream stream,
                          const ChainInput& input) override;
  Tensor head_logits(Context& context, ResidualStream stream) override;

  Slot<EmbeddingLike> embed_tokens;
  std::deque<Slot<LlamaBlock>> layers;
  Slot<NormLike> norm;
  Slot<HeadLoss> lm_head;

 private:
  Value embed(Context& context, const Tensor& ids);
  Value hidden_states(Context& context, const Tensor& ids, const Tensor& key_mask,
                      DecoderCache* cache) override;
  HeadLoss& head() override { return *lm_head; }
  std::int64_t key_width() const override { return config_.key_heads() * config_.head_channels(); }
  LlamaConfig config_;
};

}  // namespace shoal::nn
