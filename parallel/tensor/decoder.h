// Attention with rotary positions, and the gated MLP, split over the group: attention by whole
// groups of heads with their key heads, the MLP by its inner width.
#pragma once

#include "shoal/nn/layers/decoder_layers.h"
#include "shoal/parallel/tensor/tensor_parallel.h"

namespace shoal::parallel {

// local -> local (exchange.h); the projections share one enter(). Refuses a key-value cache,
// and a group with more ranks than key heads, which would require copies of key heads.
class TensorParallelGroupedAttention final : public nn::AttentionLike {
 public:
  // `config` is the whole layer's; its key heads must be a multiple of tp.
  TensorParallelGroupedAttention(const TensorParallel& group,
                                 const nn::GroupedSelfAttentionConfig& config);
  std::string_view kind() const override { return "TensorParallelGroupedAttention"; }
  nn::Value forward(nn::Context& context, const nn::Value& x,
                    const nn::AttentionInput& input) override;

  nn::HeadProjections projections;  // norms are whole and applied to the rank's heads
  nn::Slot<nn::LinearLike> output;
  nn::Slot<nn::Dropout> dropout;

 private:
  TensorParallel group_;
  nn::GroupedSelfAttentionConfig config_;
};

// gate_proj and up_proj share one enter().
class TensorParallelGatedMlp final : public nn::MlpLike {
 public:
  TensorParallelGatedMlp(const TensorParallel& group, const nn::GatedMlpConfig& config);
  std::string_view kind() const override { return "TensorParallelGatedMlp"; }
  nn::Value forward(nn::Context& context, const nn::Value& x) override;

  nn::Slot<nn::LinearLike> gate_proj, up_proj, down_proj;

 private:
  TensorParallel group_;
};

}  // namespace shoal::parallel
