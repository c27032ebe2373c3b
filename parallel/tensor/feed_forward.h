// The MLP of encoder-decoders, split over the group by its inner width.
#pragma once

#include "shoal/nn/layers/feed_forward.h"
#include "shoal/parallel/tensor/tensor_parallel.h"

namespace shoal::parallel {

// local -> local (exchange.h); `in` and `gate` share one enter().
class TensorParallelFeedForward final : public nn::MlpLike {
 public:
  // `config` is the whole layer's; its inner width must be a multiple of tp.
  TensorParallelFeedForward(const TensorParallel& group, const nn::FeedForwardConfig& config);
  std::string_view kind() const override { return "TensorParallelFeedForward"; }
  nn::Value forward(nn::Context& context, const nn::Value& x) override;

  nn::Slot<nn::LinearLike> in, out;
  std::optional<nn::Slot<nn::LinearLike>> gate;
  nn::Slot<nn::Dropout> dropout;

 private:
  TensorParallel group_;
  nn::FeedForwardConfig config_;
};

}  // namespace shoal::parallel
