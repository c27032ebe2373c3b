// GPT-2 (Radford et al., "Language Models are Unsupervised Multitask Learners", 2019), numerically
// transformers' GPT2LMHeadModel. docs/gpt2-numerics.md has what is easy to get wrong.
#pragma once

#include <deque>
#include <vector>

#include "shoal/nn/layers/chain.h"
#include "shoal/nn/layers/layers.h"
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

// One cache a block.
using Gpt2Cache = std::vector<KeyValueCache>;

class Gpt2Transformer final : public Module {
 public:
  explicit Gpt2Transformer(const Gpt2Config& config);
  std::string_view kind() const override { return "Gpt2Transformer"; }
  // ids i32 [B, T] -> [B, T, C], the first of them at `first_position`.
  Value embed(Context& context, const Tensor& ids, std::int64_t first_position);
  // ids i32 [B, T] -> normed hidden states [B, T, C]. key_mask u8 [B, T] optional (padding). With a
  // cache, ids are the positions after those it holds. For inference: training runs units.
  Value forward(Context& context, const Tensor& ids, const Tensor& key_mask, Gpt2Cache* cache);

  Slot<EmbeddingLike> wte;
  Slot<PositionEmbedding> wpe;
  Slot<Dropout> drop;
  std::deque<Slot<Gpt2Block>> h;
  Slot<NormLike> ln_f;
};

// Its units: embeddings, each block, final norm and head.
class Gpt2 final : public Chain {
 public:
  // Named and ready for materialize(); weights are drawn as GPT-2's: std initializer_range,
  // residual projections divided by sqrt(2 · n_layer).
  explicit Gpt2(const Gpt2Config& config);
  std::string_view kind() const override { return "Gpt2"; }
  const Gpt2Config& config() const { return config_; }

  // The loss of predicting targets i32 [B, T] (shifted by the task; negative: none) from ids i32
  // [B, T], T <= n_positions. Starts a new forward for random coordinates.
  LossOutput forward(Context& context, const Tensor& ids, const Tensor& targets,
                     const LossOptions& options = {}, const Tensor& key_mask = {});
  int units() const override { return static_cast<int>(config_.n_layer) + 2; }
  std::string unit_name(int unit) const override;
  std::vector<Module*> unit_modules(int unit) const override;
  std::int64_t channels() const override { return config_.n_embd; }
  ResidualStream forward_unit(Context& context, int unit, ResidualStream stream,
                              const ChainInput& input) override;
  LossOutput forward_head(Context& context, ResidualStream stream,
                          const ChainInput& input) override;
  Tensor head_logits(Context& context, ResidualStream stream) override;

  // Logits of every position, [B, T, V]; evaluate mode, nothing recorded.
  Tensor logits(Context& context, const Tensor& ids, const Tensor& key_mask = {});
  // Incremental decoding: appends ids [B, t] to the cache; logits [B, V] of the last position.
  Tensor decode(Context& context, const Tensor& ids, Gpt2Cache& cache);
  // `capacity` positions for `batch` sequences, at most n_positions.
  Gpt2Cache make_cache(Context& context, std::int64_t batch, std::int64_t capacity) const;

  // forward() keeps only each block's input, and backward runs the block again.
  void set_gradient_checkpointing(bool on) { gradient_checkpointing_ = on; }

  Slot<Gpt2Transformer> transformer;
  Slot<HeadLoss> lm_head;

 private:
  Gpt2Config config_;
  bool gradient_checkpointing_ = false;
};

}  // namespace shoal::nn
