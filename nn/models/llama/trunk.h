// The trunk below every Llama head: embeddings, blocks, last norm.
#pragma once

#include <deque>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "shoal/nn/layers/decoder_layers.h"
#include "shoal/nn/models/decoder.h"
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

class LlamaTrunk final : public DecoderTrunk {
 public:
  explicit LlamaTrunk(const LlamaConfig& config);
  std::string_view kind() const override { return "LlamaTrunk"; }
  const LlamaConfig& config() const { return config_; }

  std::string_view model_type() const override { return "llama"; }
  std::string describe() const override;
  std::int64_t vocabulary() const override { return config_.vocab_size; }
  std::int64_t positions() const override { return config_.max_position_embeddings; }
  std::int64_t channels() const override { return config_.hidden_size; }
  std::int64_t key_width() const override { return config_.key_heads() * config_.head_channels(); }
  float initial_std() const override { return static_cast<float>(config_.initializer_range); }
  std::optional<std::int64_t> padding() const override { return config_.pad_token_id; }
  bool tied() const override { return config_.tie_word_embeddings; }
  const DecoderLabels& labels() const override { return config_.labels; }
  nlohmann::ordered_json known_fields(DecoderHead head) const override;
  nlohmann::ordered_json to_json(std::string_view dtype, DecoderHead head) const override;
  // Only LlamaForQuestionAnswering calls the trunk "transformer".
  std::string_view base_name(DecoderHead head) const override {
    return head == DecoderHead::question_answering ? "transformer" : "model";
  }
  std::vector<std::string_view> base_names() const override { return {"model", "transformer"}; }
  std::string_view token_head_name() const override { return "score"; }
  bool is_buffer(std::string_view bare) const override {
    return bare.ends_with("rotary_emb.inv_freq");
  }

  int blocks() const override { return static_cast<int>(layers.size()); }
  std::string block_name(int block) const override { return fmt::format("layers.{}", block); }
  std::vector<Module*> embeddings() const override { return {&*embed_tokens}; }
  Module& block(int block) const override { return *layers[static_cast<std::size_t>(block)]; }
  NormLike& last_norm() const override { return *norm; }
  Value embed(Context& context, const Tensor& ids, std::int64_t first_position,
              const Tensor& positions) override;
  ResidualStream forward_block(Context& context, int block, ResidualStream stream,
                               const AttentionInput& input) override {
    return layers[static_cast<std::size_t>(block)]->forward(context, std::move(stream), input);
  }

  Slot<EmbeddingLike> embed_tokens;
  std::deque<Slot<LlamaBlock>> layers;
  Slot<NormLike> norm;

 private:
  LlamaConfig config_;
};

}  // namespace shoal::nn
