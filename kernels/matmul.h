// Dense matrix products.
#pragma once

#include "shoal/runtime/device/device.h"
#include "shoal/runtime/tensor/tensor.h"

namespace shoal::kernels {

enum class Activation : std::uint8_t { none, gelu_tanh, gelu_erf, tanh, relu };

struct MatmulArgs {
  ConstView a;  // [.., K] seen as [M, K]; transpose_a: [K, M]. f32, bf16 or f16
  ConstView b;  // [K, N]; transpose_b: [N, K]. Same dtype as a
  View c;       // [.., N] seen as [M, N]. The inputs' dtype, or f32 (sums are always f32)
  bool transpose_a = false;
  bool transpose_b = false;
  bool accumulate = false;  // c += a·b instead of c = a·b (no bias, no activation then)
  ConstView bias;           // optional [N], f32 or the inputs' dtype
  Activation activation = Activation::none;
  View pre_activation;  // optional [.., N], c's dtype: a·b + bias, kept for backward; may be c
  // optional [.., N], c's dtype, not c: c = (a·b) ⊙ activation'(activation_input), the gradient of
  // a value before the activation in front of a product. No bias and no pre_activation then
  ConstView activation_input;
};

class MatmulKernels {
 public:
  virtual ~MatmulKernels() = default;

  // c = activation(op(a)·op(b) + bias), or with activation_input as said there. Any size, 0
  // included (K = 0 gives the bias). A shape or dtype that does not fit throws invalid_argument
  // with the shapes.
  virtual void matmul(const MatmulArgs& args, Stream stream) = 0;

  // Independent products: a [G, M, K], b [G, K, N], c [G, M, N], transposed as above, no bias.
  virtual void batched_matmul(const MatmulArgs& args, Stream stream) = 0;

  // out[n] (+)= sum over rows of x [rows, N]; out f32. The gradient of a bias.
  virtual void sum_rows(ConstView x, View out, bool accumulate, Stream stream) = 0;
};

}  // namespace shoal::kernels
