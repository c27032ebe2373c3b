// Heads that must see every position of a sample, where a rank has a part of every sequence.
#pragma once

#include "shoal/nn/layers/task_head.h"
#include "shoal/parallel/tensor/tensor_parallel.h"

namespace shoal::parallel {

// For ActivationSplit::sequence: sequences are gathered by enter(), and each rank computes the loss
// of its share of the samples, so that gradients of the head's parameters are contributions, as
// those of everything that is replicated. The loss and the number of targets are the group's.
class SharedSamples final : public nn::WholeSequences {
 public:
  explicit SharedSamples(const TensorParallel& group) : group_(group) {}
  nn::Value whole(nn::Context& context, const nn::Value& hidden) override;
  // input.targets: i32 or f32, [B, ..]. Of a device they are read, which waits for it.
  nn::LossOutput share(nn::Context& context, const nn::Value& hidden, const nn::ChainInput& input,
                       const Head& head) override;

 private:
  TensorParallel group_;
};

}  // namespace shoal::parallel
