#include "products.h"

namespace shoal::bench {

Products::Products(std::span<const ProductShape> shapes, DType dtype, kernels::Kernels& kernels,
                   MemoryResource& memory)
    : kernels_(kernels) {
  const auto filled = [&](const Shape& shape, DType type) {
    const Tensor tensor = Tensor::empty(shape, type, memory, MemoryTag::activations);
    kernels.elementwise().fill(tensor.view(), 0.01f, {});
    return tensor;
  };
  for (const ProductShape& of : shapes) {
    const Shape weight = of.transposed ? Shape{of.n, of.k} : Shape{of.k, of.n};
    products_.push_back({of.count, of.transposed, filled({of.rows, of.k}, dtype),
                         filled(weight, dtype), filled({of.rows, of.n}, dtype),
                         filled({of.rows, of.k}, dtype), filled(weight, DType::f32)});
  }
}

void Products::step() {
  auto& matmul = kernels_.matmul();
  for (const Product& p : products_)
    for (std::int64_t i = 0; i < p.count; ++i) {
      kernels::MatmulArgs forward;
      forward.a = p.x;
      forward.b = p.weight;
      forward.transpose_b = p.transposed;
      forward.c = p.y.view();
      matmul.matmul(forward, {});
      kernels::MatmulArgs dgrad;
      dgrad.a = p.y;
      dgrad.b = p.weight;
      dgrad.transpose_b = !p.transposed;
      dgrad.c = p.dx.view();
      matmul.matmul(dgrad, {});
      kernels::MatmulArgs wgrad;
      wgrad.a = p.transposed ? p.y : p.x;
      wgrad.b = p.transposed ? p.x : p.y;
      wgrad.transpose_a = true;
      wgrad.c = p.dweight.view();
      matmul.matmul(wgrad, {});
    }
}

}  // namespace shoal::bench
