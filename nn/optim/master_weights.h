// f32 masters of a model that computes in 16 bits (decision 12), or none.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "shoal/kernels/kernels.h"
#include "shoal/nn/optim/optimizer.h"

namespace shoal::nn {

class MasterWeights {
 public:
  // `parameters` hold f32 values (initialised or loaded). compute f32: they are their own masters.
  // bf16/f16: their numbers move to masters in one block (MemoryTag::optimizer), and `value`
  // becomes a rounded copy. Parameters that are not trainable get the copy and no master. One that
  // has no value yet gets it from `fill` just before: only one at a time is whole in f32 then.
  // `rounding_seed`, of bf16: there are no masters, but updates that round stochastically
  // (kernels/rounding.h); what is called master below is then the bf16 value itself.
  // `masters`: where that block lies, if not in `memory`: pinned memory of the host, which a
  // device's kernels read and write in place.
  MasterWeights(std::span<Parameter* const> parameters, DType compute, kernels::Kernels& kernels,
                MemoryResource& memory, const std::function<void(Parameter&)>& fill = {},
                MemoryResource* masters = nullptr, std::optional<std::uint64_t> rounding_seed = {});

  // In the order of `parameters`, trainable ones only. An Optimizer wants those whose gradients
  // exist.
  std::vector<Segment> segments() const;
  // The f32 numbers by parameter name: what a checkpoint or an exported model holds.
  std::vector<NamedTensor> masters() const;
  // After somebody wrote into masters(): rounds them into the values again.
  void refresh();

 private:
  struct Entry {
    Parameter* parameter;
    Tensor master;  // f32 where there are masters, the parameter's shape
  };
  bool has_masters() const { return compute_ != DType::f32 && !rounding_seed_; }

  DType compute_;
  std::optional<std::uint64_t> rounding_seed_;
  kernels::Kernels& kernels_;
  std::vector<Entry> entries_;
};

}  // namespace shoal::nn
