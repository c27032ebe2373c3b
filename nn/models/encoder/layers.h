// The encoder's embeddings and block, configured by the family.
#pragma once

#include <optional>

#include "shoal/nn/layers/chain.h"
#include "shoal/nn/layers/decoder_layers.h"
#include "shoal/nn/layers/layers.h"
#include "shoal/nn/models/encoder/family.h"

namespace shoal::nn {

// Adds table rows selected by ids: token types, positions that depend on ids. The table is small,
// so tensor parallelism does not split it.
class AddedEmbedding final : public Module {
 public:
  AddedEmbedding(std::int64_t rows, std::int64_t channels, float std, std::int64_t padding = -1);
  std::string_view kind() const override { return "AddedEmbedding"; }
  // x + table[ids]; see add_embedding().
  Value forward(Context& context, Value x, const Tensor& ids);

 private:
  std::shared_ptr<Parameter> weight_;
  std::int64_t padding_;
};

// Dropout(LayerNorm(words + positions + token types)), then ALBERT's mapping. A family may have no
// positions here.
class EncoderEmbeddings final : public Module {
 public:
  explicit EncoderEmbeddings(const EncoderConfig& config);
  std::string_view kind() const override { return "EncoderEmbeddings"; }
  // ids i32 [B, T]; token_types the same or undefined -> [B, T, hidden_size]. Positions that depend
  // on the ids (RoBERTa) are counted on the kernels' device. A position out of range throws, for
  // host ids immediately.
  Value forward(Context& context, const Tensor& ids, const Tensor& token_types);

  Slot<EmbeddingLike> word_embeddings;
  std::optional<Slot<PositionEmbedding>> position_embeddings;
  std::optional<Slot<AddedEmbedding>> counted_positions;  // at most one of the two exists
  std::optional<Slot<AddedEmbedding>> token_type_embeddings;
  Slot<NormLike> norm;
  Slot<Dropout> dropout;
  std::optional<Slot<LinearLike>> mapping;

 private:
  Tensor positions_of(Context& context, const Tensor& ids) const;
  EncoderConfig config_;
};

// The rotary positions of layers without and with a window; null: none.
struct EncoderRotary {
  std::shared_ptr<RotaryTable> global, local;
  static EncoderRotary of(const EncoderConfig& config);
};

// Post-norm: y = norm(x + attention(x)), norm(y + ffn(y)). Pre-norm: y = x + attention(norm(x)),
// y + ffn(norm(y)), where the first block has no norm before attention.
class EncoderBlock final : public Module {
 public:
  EncoderBlock(const EncoderConfig& config, std::int64_t layer, const EncoderRotary& rotary);
  std::string_view kind() const override { return "EncoderBlock"; }
  ResidualStream forward(Context& context, ResidualStream stream, const AttentionInput& input);
  // Sets the random coordinates for the use'th time that a forward pass runs this block. For blocks
  // shared by several layers, which may be on different ranks.
  void begin_use(Context& context, std::uint32_t use) const;

  Slot<AttentionLike> attention;
  std::optional<Slot<NormLike>> attention_norm;
  Slot<MlpLike> ffn;
  Slot<NormLike> output_norm;
  Slot<Dropout> attention_dropout, ffn_dropout;

 private:
  bool norms_first_;
};

std::unique_ptr<LayerNorm> norm_of(std::int64_t channels, const EncoderConfig& config);

kernels::Activation encoder_activation(std::string_view name);  // EncoderConfig::hidden_act
inline float std_of(const EncoderConfig& config) {
  return static_cast<float>(config.initializer_range);
}
float output_std_of(const EncoderConfig& config);  // of the last layers of branches

}  // namespace shoal::nn
