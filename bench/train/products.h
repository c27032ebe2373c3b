// The matrix products of one training step and nothing else: what any step with the same products
// is bounded by. Attention's own products are not counted: attention_share() of workload.h says
// what they are beside these.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "shoal/kernels/kernels.h"

namespace shoal::bench {

// y[M, N] = x[M, K] · weight, and its two gradients, `count` times in the model.
struct ProductShape {
  std::int64_t rows, k, n, count;
  bool transposed;  // weight [N, K]
};

class Products {
 public:
  Products(std::span<const ProductShape> shapes, DType dtype, kernels::Kernels& kernels,
           MemoryResource& memory);
  void step();  // forward, dgrad and wgrad of all of them, once each

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
