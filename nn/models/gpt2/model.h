// GPT-2 (Radford et al., "Language Models are Unsupervised Multitask Learners", 2019), numerically
// transformers' GPT2LMHeadModel. docs/gpt2-numerics.md has what is easy to get wrong.
#pragma once

#include <deque>
#include <optional>
#include <vector>

#include "shoal/nn/layers/layers.h"
#include "shoal/nn/models/gpt2/config.h"

namespace shoal::nn {

// The residual stream between sub-layers: residual + dropout(branch), not yet added, because the
// next norm adds and normalises in one pass. Without a branch, the residual alone.
struct ResidualStream {
  Value residual;
  std::optional<Value> branch;
  DropoutSite dropout;
  // Adds what is pending, for who sends the stream away (checkpoint, a pipeline's stage).
  Value collapse(Context& context) &&;
  // Adds it and normalises; the stream then is the sum.
  Value norm(Context& context, NormLike& norm);
};

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
  // ids i32 [B, T] -> normed hidden states [B, T, C]. key_mask u8 [B, T] optional (padding). With a
  // cache, ids are the positions after those it holds.
  Value forward(Context& context, const Tensor& ids, const Tensor& key_mask, Gpt2Cache* cache);

  Slot<EmbeddingLike> wte;
  Slot<PositionEmbedding> wpe;
  Slot<Dropout> drop;
  std::deque<Slot<Gpt2Block>> h;
  Slot<NormLike> ln_f;
  std::shared_ptr<Parameter> token_table() const { return token_table_; }

  // Keep only each block's input, and run the block again in backward.
  bool gradient_checkpointing = false;

 private:
  std::shared_ptr<Parameter> token_table_;
};

class Gpt2 final : public Module {
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
  // Logits of every position, [B, T, V]; evaluate mode, nothing recorded.
  Tensor logits(Context& context, const Tensor& ids, const Tensor& key_mask = {});
  // Incremental decoding: appends ids [B, t] to the cache; logits [B, V] of the last position.
  Tensor decode(Context& context, const Tensor& ids, Gpt2Cache& cache);
  // `capacity` positions for `batch` sequences, at most n_positions.
  Gpt2Cache make_cache(Context& context, std::int64_t batch, std::int64_t capacity) const;

  void set_gradient_checkpointing(bool on) { transformer->gradient_checkpointing = on; }

  Slot<Gpt2Transformer> transformer;
  Slot<HeadLoss> lm_head;

 private:
  Gpt2Config config_;
};

}  // namespace shoal::nn
