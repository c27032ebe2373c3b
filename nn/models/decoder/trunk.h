// The trunk below every decoder's head: embeddings, blocks, last norm. A DecoderFamily says which
// pieces they have.
#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "shoal/nn/layers/chain.h"
#include "shoal/nn/layers/decoder_layers.h"
#include "shoal/nn/models/decoder/config.h"

namespace shoal::nn {

class DecoderBlock final : public Module {
 public:
  DecoderBlock(const DecoderConfig& config, std::int64_t layer,
               const std::shared_ptr<RotaryTable>& rotary);  // the layer's
  std::string_view kind() const override { return "DecoderBlock"; }
  ResidualStream forward(Context& context, ResidualStream stream, const AttentionInput& input);

 private:
  // Always present, but created in the family's order.
  std::optional<Slot<NormLike>> attention_norm_, mlp_norm_;
  std::optional<Slot<NormLike>> attention_output_norm_, mlp_output_norm_;  // absent: none
  std::optional<Slot<AttentionLike>> attention_;
  std::optional<Slot<MlpLike>> mlp_;
  std::optional<Slot<Dropout>> attention_dropout_, mlp_dropout_;  // absent: none
  bool parallel_;  // attention and MLP read the same residual stream
};

class DecoderTrunk final : public Module {
 public:
  explicit DecoderTrunk(const DecoderConfig& config);
  std::string_view kind() const override { return "DecoderTrunk"; }
  const DecoderConfig& config() const { return config_; }
  const DecoderFamily& family() const { return family_; }
  std::string describe() const;  // "2 layers of width 12, ..."
  std::int64_t key_width() const { return config_.key_heads() * config_.head_channels(); }
  float initial_std() const { return static_cast<float>(config_.initializer_range); }
  // The trunk's name below a head in transformers ("model"), and all names that files may use.
  std::string_view base_name(DecoderHead head) const;
  std::vector<std::string_view> base_names() const;
  // True for buffers saved by older versions. `bare` is the name without the base.
  bool is_buffer(std::string_view bare) const;

  int blocks() const { return static_cast<int>(layers_.size()); }
  std::string block_name(int block) const;  // "h.3"
  std::vector<Module*> embeddings() const;
  EmbeddingLike& embedding() const { return *embedding_; }
  Module& block(int block) const { return *layers_[static_cast<std::size_t>(block)]; }
  NormLike& last_norm() const { return **norm_; }
  // ids i32 [B, T] -> [B, T, C]. Positions count from `first_position`, unless `positions`
  // (ChainInput) is defined.
  Value embed(Context& context, const Tensor& ids, std::int64_t first_position,
              const Tensor& positions);
  ResidualStream forward_block(Context& context, int block, ResidualStream stream,
                               const AttentionInput& input);

 private:
  DecoderConfig config_;
  const DecoderFamily& family_;
  Slot<EmbeddingLike> embedding_;
  std::optional<Slot<PositionEmbedding>> positions_;
  std::optional<Slot<Dropout>> dropout_;
  std::deque<Slot<DecoderBlock>> layers_;
  std::optional<Slot<NormLike>> norm_;
};

}  // namespace shoal::nn
