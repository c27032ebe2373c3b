// What every head of a Llama stands on: embeddings, blocks, the last norm.
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

// Children of the model that owns it, which is a chain of embeddings, each block, and a head.
class LlamaTrunk {
 public:
  LlamaTrunk(Module& owner, const LlamaConfig& config);
  const LlamaConfig& config() const { return config_; }
  int units() const { return static_cast<int>(config_.num_hidden_layers) + 2; }
  std::string unit_name(int unit) const;
  // Of any unit; `head` is the module that the last one has besides the norm.
  std::vector<Module*> unit_modules(int unit, Module& head) const;
  Value embed(Context& context, const Tensor& ids);
  ResidualStream forward_unit(Context& context, int unit, ResidualStream stream,
                              const ChainInput& input);
  std::string describe() const;  // "2 layers of width 12, ..."
  // Names with and without "model." are accepted; older versions' buffers (rotary_emb.inv_freq) and
  // a tied head's copy are passed over. `head_may_be_new`: what is not the trunk's may be missing.
  LoadReport load(Module& model, const std::string& directory, const AssignParameter& assign,
                  bool head_may_be_new) const;

  Slot<EmbeddingLike> embed_tokens;
  std::deque<Slot<LlamaBlock>> layers;
  Slot<NormLike> norm;

 private:
  LlamaConfig config_;
};

}  // namespace shoal::nn
