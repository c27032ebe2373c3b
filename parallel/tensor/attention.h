// GPT-2's and BERT's attention with the heads cut over the group, tp-th by tp-th in their order.
#pragma once

#include "shoal/nn/layers/layers.h"
#include "shoal/parallel/tensor/tensor_parallel.h"

namespace shoal::parallel {

// local -> local (exchange.h). Dropout and key mask are those of the group's samples, so that the
// result is the whole layer's. A key-value cache is refused.
class TensorParallelAttention final : public nn::AttentionLike {
 public:
  // `config` is the whole layer's; its heads must divide.
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

// BERT's: the three projections share one enter().
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
