// Heads that need every position of a sample, while each rank has a part of every sequence.
#pragma once

#include "shoal/nn/layers/task_head.h"
#include "shoal/parallel/tensor/tensor_parallel.h"

namespace shoal::parallel {

// For ActivationSplit::sequence: enter() gathers the sequences, and each rank computes the loss of
// its share of the samples. Gradients of the head's parameters are therefore partial sums, like
// those of all replicated parameters. The loss and the number of targets are the group's.
class SharedSamples final : public nn::WholeSequences {
 public:
  explicit SharedSamples(const TensorParallel& group) : group_(group) {}
  nn::Value whole(nn::Context& context, const nn::Value& hidden) override;
  // input.targets: i32 or f32, [B, ..]. The host reads them; on a device without a host copy it
  // waits.
  nn::LossOutput share(nn::Context& context, const nn::Value& hidden, const nn::ChainInput& input,
                       const Head& head) override;

 private:
  TensorParallel group_;
};

}  // namespace shoal::parallel
