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
  // optional f32, of a weight's gradient (no bias, no activation, nothing kept): the column sums of
  // b [N], or of a [M], which then is stored with its K rows, as by sum_rows(). The gradient of a
  // bias, from the product that reads the same matrix
  View bias_gradient;
  bool bias_gradient_of_a = false;
  bool accumulate_bias_gradient = false;  // else bias_gradient is overwritten
};

class MatmulKernels {
 public:
  virtual ~MatmulKernels() = default;

  // c = activation(op(a)·op(b) + bias), or with activation_input as said there. Any size, 0
  // included (K = 0 gives the bias). A shape or dtype that does not fit throws invalid_argument
  // with the shapes. bias_gradient has sum_rows()'s bits, but on CUDA where cuBLASLt adds it up
  // within the product: then in f32 and in an order of its own, the same in each run (gemm.h).
  virtual void matmul(const MatmulArgs& args, Stream stream) = 0;

  // Independent products: a [G, M, K], b [G, K, N], c [G, M, N], transposed as above, no bias.
  virtual void batched_matmul(const MatmulArgs& args, Stream stream) = 0;

  // out[n] (+)= sum over rows of x [rows, N]; out f32. The gradient of a bias.
  virtual void sum_rows(ConstView x, View out, bool accumulate, Stream stream) = 0;
};

}  // namespace shoal::kernels
