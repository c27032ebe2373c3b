// f32 masters of a model that computes in 16 bits (decision 12), or updates without masters.
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
  // `parameters` hold f32 values (initialised or loaded). With compute f32, they are their own
  // masters. With bf16/f16, their values move to masters in one block (MemoryTag::optimizer), and
  // `value` becomes a rounded copy. Frozen parameters get the copy only. If a parameter has no
  // value yet, `fill` provides it just before, so that only one parameter at a time is whole in
  // f32.
  //
  // `rounding_seed` (bf16 only): there are no masters; updates round stochastically
  // (kernels/rounding.h). "Master" below then means the bf16 value itself. `masters`: memory of the
  // block if not `memory`, such as pinned host memory that a device's kernels access in place.
  MasterWeights(std::span<Parameter* const> parameters, DType compute, kernels::Kernels& kernels,
                MemoryResource& memory, const std::function<void(Parameter&)>& fill = {},
                MemoryResource* masters = nullptr, std::optional<std::uint64_t> rounding_seed = {});

  // One segment per trainable parameter, in the order of `parameters`. Gradients must exist before
  // an Optimizer is made from them.
  std::vector<Segment> segments() const;
  // f32 values by parameter name, for checkpoints and exported models.
  std::vector<NamedTensor> masters() const;
  // Rounds the masters into the values again, after masters() were modified.
  void refresh();

 private:
  struct Entry {
    Parameter* parameter;
    Tensor master;  // f32 if there are masters; the parameter's shape
  };
  bool has_masters() const { return compute_ != DType::f32 && !rounding_seed_; }

  DType compute_;
  std::optional<std::uint64_t> rounding_seed_;
  kernels::Kernels& kernels_;
  std::vector<Entry> entries_;
};

}  // namespace shoal::nn
