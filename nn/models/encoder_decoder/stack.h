// The encoder's or the decoder's half of an encoder-decoder: embeddings, blocks, last norm.
#pragma once

#include <deque>
#include <memory>
#include <optional>

#include "shoal/nn/layers/chain.h"
#include "shoal/nn/layers/layers.h"
#include "shoal/nn/layers/relative_positions.h"
#include "shoal/nn/models/encoder_decoder/family.h"

namespace shoal::nn {

// Dropout(norm(scale · words + positions)). A family may lack the norm and the positions.
class StackEmbeddings final : public Module {
 public:
  explicit StackEmbeddings(const EncoderDecoderConfig& config);
  std::string_view kind() const override { return "StackEmbeddings"; }
  // ids i32 [B, T] -> [B, T, C]. `first`: position of the first id.
  Value forward(Context& context, EmbeddingLike& words, const Tensor& ids, std::int64_t first);

 private:
  float scale_;
  std::int64_t offset_;  // of positions in their table
  std::optional<Slot<PositionEmbedding>> positions_;
  std::optional<Slot<NormLike>> norm_;
  std::optional<Slot<Dropout>> dropout_;
};

// Self-attention, in a decoder cross-attention, and an MLP, each with a residual sum. The norms
// come before them (T5) or after the sums (BART).
class StackBlock final : public Module {
 public:
  // `positions`: those of the stack's first block, which has its own: null there.
  StackBlock(const EncoderDecoderConfig& config, bool decoder, RelativePositions* positions);
  std::string_view kind() const override { return "StackBlock"; }
  // `cross`: the input of cross-attention, which `stream.encoded` completes.
  ResidualStream forward(Context& context, ResidualStream stream, const AttentionInput& input,
                         AttentionInput cross);
  RelativePositions* positions() const { return positions_ ? &**positions_ : nullptr; }

 private:
  template <class Kind>
  struct SubLayer {
    std::optional<Slot<Kind>> layer;
    std::optional<Slot<NormLike>> norm;
    std::optional<Slot<Dropout>> dropout;
  };
  template <class Kind>
  void add(const EncoderDecoderConfig& config, SubLayer<Kind>& part, std::string_view name,
           std::string_view norm, std::unique_ptr<Kind> layer);
  template <class Kind, class Call>
  void run(Context& context, ResidualStream& stream, SubLayer<Kind>& part, const Call& call);

  bool pre_norm_;
  std::optional<Slot<RelativePositions>> positions_;
  SubLayer<AttentionLike> self_, cross_;  // an encoder's blocks have no cross_
  SubLayer<MlpLike> mlp_;
};

class Stack final : public Module {
 public:
  Stack(const EncoderDecoderConfig& config, bool decoder);
  std::string_view kind() const override { return "Stack"; }
  int blocks() const { return static_cast<int>(blocks_.size()); }
  StackBlock& block(int block) const { return *blocks_[static_cast<std::size_t>(block)]; }
  StackEmbeddings& embeddings() const { return **embeddings_; }
  NormLike* last_norm() const { return last_norm_ ? &**last_norm_ : nullptr; }
  // The stack's result: Dropout(norm(stream)); a family may lack either.
  Value finish(Context& context, ResidualStream stream);

 private:
  std::optional<Slot<StackEmbeddings>> embeddings_;
  std::deque<Slot<StackBlock>> blocks_;
  std::optional<Slot<NormLike>> last_norm_;
  std::optional<Slot<Dropout>> last_dropout_;
};

}  // namespace shoal::nn
