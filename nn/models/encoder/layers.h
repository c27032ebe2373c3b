// The encoder's embeddings and block, as its families configure them.
#pragma once

#include <optional>

#include "shoal/nn/layers/chain.h"
#include "shoal/nn/layers/layers.h"
#include "shoal/nn/models/encoder/family.h"

namespace shoal::nn {

// LayerNorm(words + positions + token types), dropped out, and ALBERT's mapping.
class EncoderEmbeddings final : public Module {
 public:
  explicit EncoderEmbeddings(const EncoderConfig& config);
  std::string_view kind() const override { return "EncoderEmbeddings"; }
  // ids i32 [B, T], token_types the same or undefined -> [B, T, hidden_size]. Positions that depend
  // on the ids (RoBERTa) are counted where the kernels are; one beyond the model's throws, at once
  // where the ids are in host memory.
  Value forward(Context& context, const Tensor& ids, const Tensor& token_types);

  Slot<EmbeddingLike> word_embeddings;
  std::optional<Slot<PositionEmbedding>> position_embeddings;
  std::optional<Slot<AddedEmbedding>> counted_positions;  // one of the two
  std::optional<Slot<AddedEmbedding>> token_type_embeddings;
  Slot<NormLike> norm;
  Slot<Dropout> dropout;
  std::optional<Slot<LinearLike>> mapping;

 private:
  Tensor positions_of(Context& context, const Tensor& ids) const;
  EncoderConfig config_;
};

// Post-norm: y = norm(x + attention(x)), norm(y + ffn(y)).
class EncoderBlock final : public Module {
 public:
  explicit EncoderBlock(const EncoderConfig& config);
  std::string_view kind() const override { return "EncoderBlock"; }
  Value forward(Context& context, const Value& x, const AttentionInput& input);
  // The use'th time in a forward that this block computes, whatever part of the forward is here:
  // sets the random coordinates of what follows. For blocks that several layers share.
  void begin_use(Context& context, std::uint32_t use) const;

  Slot<AttentionLike> attention;
  Slot<NormLike> attention_norm;
  Slot<Mlp> ffn;
  Slot<NormLike> output_norm;
  Slot<Dropout> attention_dropout, ffn_dropout;
};

kernels::Activation activation_of(const EncoderConfig& config);

}  // namespace shoal::nn
