// Matrix products with explicit leading dimensions through cuBLASLt. MatmulKernels uses them, and
// other families use them for matrices that are padded or part of larger ones.
//
// Without a cache directory, the algorithm is cuBLASLt's first proposal. With a directory, it is
// the fastest of its proposals. They are timed at a shape's first use (never during stream
// capture), and the choice is stored in a file for the device and the library's version. Only
// algorithms with a fixed order of additions are used, so one choice always gives the same bits.
// Processes agree on the choice if they have no directory or share one: the first to finish timing
// decides (gemm_choices.h).
//
// cuBLASLt computes a bias's gradient within the product (epilogues BGRADA, BGRADB) if c is f32, as
// its sums have c's dtype, and if timing shows a gain. Otherwise, and always without a directory,
// our own separate pass computes it. SHOAL_CUDA_BIAS_GRADIENT forces one of them. cuBLASLt
// documents neither the order nor the precision of its sums, so they are compared with those of our
// pass before a shape's first use. It does promise that one algorithm gives the same bits in each
// run.
#pragma once

#include <memory>
#include <string>

#include "shoal/kernels/matmul.h"

namespace shoal::kernels {

class CudaResources;

// A row-major matrix in device memory. Element (i, j) of group g is data[g·stride + i·leading + j].
struct GemmMatrix {
  const void* data = nullptr;
  std::int64_t leading = 0;  // elements between rows, at least the columns
  std::int64_t stride = 0;   // elements between groups; unused with one group
};

// c = alpha·ab + beta·c. With bias, activation or aux (one group, beta 0):
// c = activation(ab + bias), or c = ab ⊙ activation'(aux) if aux_is_input.
struct GemmArgs {
  std::int64_t m = 0, n = 0, k = 0, groups = 1;
  GemmMatrix a;  // [M, K]; transpose_a: [K, M]
  GemmMatrix b;  // [K, N]; transpose_b: [N, K]
  GemmMatrix c;  // [M, N], output; may overlap only an aux that is written
  bool transpose_a = false, transpose_b = false;
  DType input = DType::f32;   // of a and b: f32, bf16 or f16
  DType output = DType::f32;  // of c and aux: the inputs' dtype or f32. Sums are f32
  float alpha = 1, beta = 0;
  const void* bias = nullptr;     // [N]
  DType bias_dtype = DType::f32;  // f32, or the inputs' dtype
  Activation activation = Activation::none;
  GemmMatrix aux;  // [M, N], optional: receives ab + bias
  bool aux_is_input = false;
  // Optional, for a product of one group without any of the above: receives the column sums of b
  // [N] or of a [M], stored as contiguous [K, columns].
  float* bias_gradient = nullptr;
  bool bias_gradient_of_a = false, adds_bias_gradient = false;
};

class CudaGemm {
 public:
  virtual ~CudaGemm() = default;

  // Any sizes, alignments and leading dimensions. Products that cuBLASLt does not take go through a
  // plain kernel, logged once. K = 0 gives an empty sum. Queued on `stream`; Stream{}: the stream
  // of `resources`.
  virtual void run(const GemmArgs& args, Stream stream) = 0;
};

// cache_directory: empty for no timing. `resources` must outlive the result.
std::unique_ptr<CudaGemm> make_cuda_gemm(CudaResources& resources,
                                         const std::string& cache_directory);

}  // namespace shoal::kernels
