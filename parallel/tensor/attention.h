// GPT-2's attention, and that of BERT and encoder-decoders, with heads split over the group: each
// rank has 1/tp of them, in order.
#pragma once

#include "shoal/nn/layers/self_attention.h"
#include "shoal/parallel/tensor/tensor_parallel.h"

namespace shoal::parallel {

// local -> local (exchange.h). Dropout and key mask cover the group's samples, so the result equals
// the whole layer's. A key-value cache is refused.
class TensorParallelAttention final : public nn::AttentionLike {
 public:
  // `config` is the whole layer's; its heads must be a multiple of tp.
  TensorParallelAttention(const TensorParallel& group, const nn::CausalSelfAttentionConfig& config);
  std::string_view kind() const override { return "TensorParallelAttention"; }
  nn::Value forward(nn::Context& context, const nn::Value& x,
                    const nn::AttentionInput& input) override;

  nn::Slot<nn::LinearLike> c_attn, c_proj;
  nn::Slot<nn::Dropout> attn_dropout;

 private:
  TensorParallel group_;
  nn::CausalSelfAttentionConfig config_;
};

// SelfAttention: the three projections share one enter(), but cross-attention has one for its keys
// and values. Each rank's gradient of relative positions is that of its heads.
class TensorParallelSelfAttention final : public nn::AttentionLike {
 public:
  TensorParallelSelfAttention(const TensorParallel& group, const nn::SelfAttentionConfig& config);
  std::string_view kind() const override { return "TensorParallelSelfAttention"; }
  nn::Value forward(nn::Context& context, const nn::Value& x,
                    const nn::AttentionInput& input) override;

  nn::Slot<nn::LinearLike> query, key, value, output;
  nn::Slot<nn::Dropout> dropout;

 private:
  TensorParallel group_;
  nn::SelfAttentionConfig config_;
};

}  // namespace shoal::parallel
