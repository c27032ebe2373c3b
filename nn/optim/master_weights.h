// Master weights: f32 copies of the parameters of a 16-bit model (decision 12). With stochastic
// rounding, bf16 parameters need none.
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
  // `parameters` hold f32 values (initialised or loaded). With f32 compute, they are their own
  // masters. With bf16/f16, their values move to masters in one block (MemoryTag::optimizer), and
  // `value` becomes a rounded copy. A frozen parameter gets no master. `fill` initialises a
  // parameter that has no value yet, just before its conversion, so only one parameter at a time
  // exists in f32.
  //
  // `rounding_seed` (bf16 only) selects stochastic rounding without masters (kernels/rounding.h).
  // "Master" below then means the bf16 value itself. `masters`: where to allocate the block instead
  // of `memory`, such as pinned host memory that device kernels access in place.
  MasterWeights(std::span<Parameter* const> parameters, DType compute, kernels::Kernels& kernels,
                MemoryResource& memory, const std::function<void(Parameter&)>& fill = {},
                MemoryResource* masters = nullptr, std::optional<std::uint64_t> rounding_seed = {});

  // One segment per trainable parameter, in the order of `parameters`. Create the gradients before
  // you make an Optimizer from the segments.
  std::vector<Segment> segments() const;
  // f32 values by parameter name, for checkpoints and exported models.
  std::vector<NamedTensor> masters() const;
  // Rounds the masters into the values again. Call after modifying masters().
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
