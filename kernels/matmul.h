// Dense matrix products.
#pragma once

#include "shoal/kernels/activation.h"
#include "shoal/runtime/device/device.h"
#include "shoal/runtime/tensor/tensor.h"

namespace shoal::kernels {

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
  // Optional [.., N], c's dtype, must not alias c: c = (a·b) ⊙ activation'(activation_input), the
  // gradient before an activation that precedes the product. Excludes bias and pre_activation.
  ConstView activation_input;
  // Optional f32, for products that compute a weight's gradient (no bias, no activation, no
  // pre_activation): the column sums of b [N] or of a [M], as by sum_rows(). The summed operand
  // must be stored with K rows. These sums are the bias's gradient, computed from a matrix that the
  // product reads anyway.
  View bias_gradient;
  bool bias_gradient_of_a = false;
  bool accumulate_bias_gradient = false;  // else bias_gradient is overwritten
};

class MatmulKernels {
 public:
  virtual ~MatmulKernels() = default;

  // c = activation(op(a)·op(b) + bias), or the product described at activation_input. Any size,
  // including 0 (K = 0 gives the bias). Mismatched shapes or dtypes throw invalid_argument with the
  // shapes.
  // bias_gradient has the same bits as sum_rows(). Exception: if cuBLASLt sums it within the
  // product, the sum is in f32 and in cuBLASLt's order, which is the same in each run (gemm.h).
  virtual void matmul(const MatmulArgs& args, Stream stream) = 0;

  // Independent products: a [G, M, K], b [G, K, N], c [G, M, N], transposed as above, no bias.
  virtual void batched_matmul(const MatmulArgs& args, Stream stream) = 0;

  // out[n] (+)= sum over rows of x [rows, N]; out f32. This is a bias's gradient.
  virtual void sum_rows(ConstView x, View out, bool accumulate, Stream stream) = 0;
};

}  // namespace shoal::kernels
