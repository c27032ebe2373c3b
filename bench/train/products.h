// Only the matrix products of one training step: a bound for any step with the same products.
// Excludes attention's own products; attention_share() in workload.h gives their relative size.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "shoal/kernels/kernels.h"

namespace shoal::bench {

// y[M, N] = x[M, K] · weight and its two gradients, `count` times per step.
struct ProductShape {
  std::int64_t rows, k, n, count;
  bool transposed;  // weight [N, K]
};

class Products {
 public:
  Products(std::span<const ProductShape> shapes, DType dtype, kernels::Kernels& kernels,
           MemoryResource& memory);
  void step();  // forward, dgrad and wgrad of each product

 private:
  struct Product {
    std::int64_t count;
    bool transposed;
    Tensor x, weight, y;  // [M, K], [K, N] or [N, K], [M, N]
    Tensor dx, dweight;   // dtype; f32
  };
  kernels::Kernels& kernels_;
  std::vector<Product> products_;
};

}  // namespace shoal::bench
