// The matrix products of one GPT-2 training step and nothing else: what any step with the same
// products is bounded by. Attention's own products (7 % more at T = 512) are not counted.
#pragma once

#include <cstdint>
#include <vector>

#include "shoal/kernels/kernels.h"
#include "shoal/nn/models/gpt2/config.h"

namespace shoal::bench {

class Gpt2Products {
 public:
  Gpt2Products(const nn::Gpt2Config& config, std::int64_t tokens, DType dtype,
               kernels::Kernels& kernels, MemoryResource& memory);
  void step();  // forward, dgrad and wgrad of every layer and the head, once each

 private:
  struct Product {
    std::int64_t count;   // in the model
    bool transposed;      // weight [N, K], as the head's
    Tensor x, weight, y;  // [M, K], [K, N] or [N, K], [M, N]
    Tensor dx, dweight;   // dtype; f32
  };
  kernels::Kernels& kernels_;
  std::vector<Product> products_;
};

}  // namespace shoal::bench
