#include "gpt2_products.h"

namespace shoal::bench {

Gpt2Products::Gpt2Products(const nn::Gpt2Config& config, std::int64_t tokens, DType dtype,
                           kernels::Kernels& kernels, MemoryResource& memory)
    : kernels_(kernels) {
  const auto filled = [&](const Shape& shape, DType type) {
    const Tensor tensor = Tensor::empty(shape, type, memory, MemoryTag::activations);
    kernels.elementwise().fill(tensor.view(), 0.01f, {});
    return tensor;
  };
  const std::int64_t c = config.n_embd;
  const auto add = [&](std::int64_t k, std::int64_t n, std::int64_t count, bool transposed) {
    const Shape weight = transposed ? Shape{n, k} : Shape{k, n};
    products_.push_back({count, transposed, filled({tokens, k}, dtype), filled(weight, dtype),
                         filled({tokens, n}, dtype), filled({tokens, k}, dtype),
                         filled(weight, DType::f32)});
  };
  add(c, 3 * c, config.n_layer, false);
  add(c, c, config.n_layer, false);
  add(c, config.inner(), config.n_layer, false);
  add(config.inner(), c, config.n_layer, false);
  add(c, config.vocab_size, 1, true);
}

void Gpt2Products::step() {
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
