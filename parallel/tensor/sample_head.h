// Heads that need every position of a sample, while each rank has a part of every sequence.
#pragma once

#include "shoal/nn/layers/task_head.h"
#include "shoal/parallel/tensor/tensor_parallel.h"

namespace shoal::parallel {

// For ActivationSplit::sequence: enter() gathers the sequences, and each rank computes the loss of
// its share of the samples. Gradients of the head's parameters are therefore partial sums, like
// those of all replicated parameters. The loss and the number of targets are the group's.
class SharedSampleHead final : public nn::TaskHead {
 public:
  SharedSampleHead(const TensorParallel& group, std::unique_ptr<nn::TaskHead> whole)
      : whole_(*this, "", std::move(whole)), group_(group) {}
  std::string_view kind() const override { return "SharedSampleHead"; }
  // input.targets: i32 or f32, [B, ..]. The host reads them; for device targets without
  // HostTargets it waits.
  nn::LossOutput forward(nn::Context& context, const nn::Value& hidden,
                         const nn::ChainInput& input) override;
  nn::Value logits(nn::Context& context, const nn::Value& hidden,
                   const nn::ChainInput& input) override;

 private:
  nn::Slot<nn::TaskHead> whole_;
  TensorParallel group_;
};

}  // namespace shoal::parallel
