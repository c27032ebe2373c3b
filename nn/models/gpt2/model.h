// GPT-2 (Radford et al., "Language Models are Unsupervised Multitask Learners", 2019), numerically
// transformers' GPT2LMHeadModel. docs/gpt2-numerics.md has what is easy to get wrong.
#pragma once

#include <deque>
#include <string>
#include <vector>

#include "shoal/nn/layers/layers.h"
#include "shoal/nn/models/causal_lm.h"
#include "shoal/nn/models/gpt2/config.h"

namespace shoal::nn {

class Gpt2Block final : public Module {
 public:
  Gpt2Block(const Gpt2Config& config, std::int64_t layer);
  std::string_view kind() const override { return "Gpt2Block"; }
  ResidualStream forward(Context& context, ResidualStream stream, const AttentionInput& input);

  Slot<NormLike> ln_1;
  Slot<AttentionLike> attn;
  Slot<NormLike> ln_2;
  Slot<Mlp> mlp;
  Slot<Dropout> attn_resid_dropout, mlp_dropout;
};

class Gpt2Transformer final : public Module {
 public:
  explicit Gpt2Transformer(const Gpt2Config& config);
  std::string_view kind() const override { return "Gpt2Transformer"; }
  // ids i32 [B, T] -> [B, T, C], the first of them at `first_position`.
  Value embed(Context& context, const Tensor& ids, std::int64_t first_position);
  // ids i32 [B, T] -> normed hidden states [B, T, C]. key_mask u8 [B, T] optional (padding). With a
  // cache, ids are the positions after those it holds. For inference: training runs units.
  Value forward(Context& context, const Tensor& ids, const Tensor& key_mask, DecoderCache* cache);

  Slot<EmbeddingLike> wte;
  Slot<PositionEmbedding> wpe;
  Slot<Dropout> drop;
  std::deque<Slot<Gpt2Block>> h;
  Slot<NormLike> ln_f;
};

// Its units: embeddings, each block, final norm and head.
class Gpt2 final : public CausalLm {
 public:
  // Named and ready for materialize(); weights are drawn as GPT-2's: std initializer_range,
  // residual projections divided by sqrt(2 · n_layer).
  explicit Gpt2(const Gpt2Config& config);
  std::string_view kind() const override { return "Gpt2"; }
  const Gpt2Config& config() const { return config_; }
  std::string describe() const override;
  std::int64_t vocabulary() const override { return config_.vocab_size; }
  std::int64_t positions() const override { return config_.n_positions; }
  LoadReport load(const std::string& directory, const AssignParameter& assign) override;
  std::vector<std::string> save_config(const std::string& directory, DType dtype) const override;

  int units() const override { return static_cast<int>(config_.n_layer) + 2; }
  std::string unit_name(int unit) const override;
  std::vector<Module*> unit_modules(int unit) const override;
  std::int64_t channels() const override { return config_.n_embd; }
  ResidualStream forward_unit(Context& context, int unit, ResidualStream stream,
                              const ChainInput& input) override;
  LossOutput forward_head(Context& context, ResidualStream stream,
                          const ChainInput& input) override;
  Tensor head_logits(Context& context, ResidualStream stream, const ChainInput& input) override;

  Slot<Gpt2Transformer> transformer;
  Slot<HeadLoss> lm_head;

 private:
  Value hidden_states(Context& context, const Tensor& ids, const Tensor& key_mask,
                      DecoderCache* cache) override {
    return transformer->forward(context, ids, key_mask, cache);
  }
  HeadLoss& head() override { return *lm_head; }
  std::int64_t key_width() const override { return config_.n_embd; }
  Gpt2Config config_;
};

}  // namespace shoal::nn
