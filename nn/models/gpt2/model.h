// GPT-2 (Radford et al., "Language Models are Unsupervised Multitask Learners", 2019), numerically
// equal to transformers' GPT2LMHeadModel. docs/internals/gpt2-numerics.md lists the pitfalls.
#pragma once

#include <deque>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

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

class Gpt2Transformer final : public DecoderTrunk {
 public:
  explicit Gpt2Transformer(const Gpt2Config& config);
  std::string_view kind() const override { return "Gpt2Transformer"; }
  const Gpt2Config& config() const { return config_; }

  std::string_view model_type() const override { return "gpt2"; }
  std::string describe() const override;
  std::int64_t vocabulary() const override { return config_.vocab_size; }
  std::int64_t positions() const override { return config_.n_positions; }
  std::int64_t channels() const override { return config_.n_embd; }
  std::int64_t key_width() const override { return config_.n_embd; }
  float initial_std() const override { return static_cast<float>(config_.initializer_range); }
  std::optional<std::int64_t> padding() const override { return config_.pad_token_id; }
  bool tied() const override { return config_.tie_word_embeddings; }
  const DecoderLabels& labels() const override { return config_.labels; }
  nlohmann::ordered_json known_fields(DecoderHead head) const override;
  nlohmann::ordered_json to_json(std::string_view dtype, DecoderHead head) const override;
  std::string_view base_name(DecoderHead /*head*/) const override { return "transformer"; }
  std::vector<std::string_view> base_names() const override { return {"transformer"}; }
  std::string_view token_head_name() const override { return "classifier"; }
  bool is_buffer(std::string_view bare) const override;

  int blocks() const override { return static_cast<int>(h.size()); }
  std::string block_name(int block) const override { return fmt::format("h.{}", block); }
  std::vector<Module*> embeddings() const override { return {&*wte, &*wpe}; }
  Module& block(int block) const override { return *h[static_cast<std::size_t>(block)]; }
  NormLike& last_norm() const override { return *ln_f; }
  Value embed(Context& context, const Tensor& ids, std::int64_t first_position,
              const Tensor& positions) override;
  ResidualStream forward_block(Context& context, int block, ResidualStream stream,
                               const AttentionInput& input) override {
    return h[static_cast<std::size_t>(block)]->forward(context, std::move(stream), input);
  }

  Slot<EmbeddingLike> wte;
  Slot<PositionEmbedding> wpe;
  Slot<Dropout> drop;
  std::deque<Slot<Gpt2Block>> h;
  Slot<NormLike> ln_f;

 private:
  Gpt2Config config_;
};

class Gpt2 final : public CausalLm {
 public:
  // Names the module tree; call materialize() next. Weights are drawn as in GPT-2: std
  // initializer_range, divided by sqrt(2 · n_layer) for residual projections.
  explicit Gpt2(const Gpt2Config& config);
  std::string_view kind() const override { return "Gpt2"; }
  const Gpt2Config& config() const { return transformer->config(); }
  DecoderTrunk& trunk() const override { return *transformer; }

  Slot<Gpt2Transformer> transformer;
  Slot<HeadLoss> lm_head;

 private:
  HeadLoss& head() const override { return *lm_head; }
};

}  // namespace shoal::nn
