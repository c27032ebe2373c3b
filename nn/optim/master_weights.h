// f32 masters of a model that computes in 16 bits (decision 12).
#pragma once

#include <functional>
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
  // `masters`: where that block lies, if not in `memory`: pinned memory of the host, which a
  // device's kernels read and write in place.
  MasterWeights(std::span<Parameter* const> parameters, DType compute, kernels::Kernels& kernels,
                MemoryResource& memory, const std::function<void(Parameter&)>& fill = {},
                MemoryResource* masters = nullptr);

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
    Tensor master;  // f32, the parameter's shape
  };
  DType compute_;
  kernels::Kernels& kernels_;
  std::vector<Entry> entries_;
};

}  // namespace shoal::nn
