// Products with explicit leading dimensions through cuBLASLt: what MatmulKernels is built on, and
// what a family calls whose matrices are padded or lie inside others.
//
// Which algorithm: cuBLASLt's first proposal, or, where a cache directory is given, the fastest of
// its proposals by timing at a shape's first use (never inside a stream capture), remembered there
// in a file for the device and the library's version. Only algorithms with a fixed order of
// additions are taken, so one choice gives the same bits always. Processes make the same choice
// without a directory, or with one directory: the first that has timed decides (gemm_choices.h).
//
// A bias's gradient is summed by cuBLASLt within the product (epilogues BGRADA, BGRADB) where c is
// f32, as the sums then are, and timing says that it pays; else by a pass of our own, so without a
// directory always (SHOAL_CUDA_BIAS_GRADIENT asks for one or the other). cuBLASLt says neither in
// which order nor how precisely it adds: before a shape's first use its sums are held against the
// pass's. That one algorithm gives the same bits in each run is promised of all it computes.
#pragma once

#include <memory>
#include <string>

#include "shoal/kernels/matmul.h"

namespace shoal::kernels {

class CudaRoom;

// A matrix in device memory, row-major: element (i, j) of group g is data[g·stride + i·leading +
// j].
struct GemmMatrix {
  const void* data = nullptr;
  std::int64_t leading = 0;  // elements from row to row, at least the columns
  std::int64_t stride = 0;   // elements from group to group; unused with one group
};

// c = alpha·ab + beta·c; with bias, activation or aux (one group, beta 0) c = activation(ab +
// bias), or, where aux_is_input, c = ab ⊙ activation'(aux).
struct GemmArgs {
  std::int64_t m = 0, n = 0, k = 0, groups = 1;
  GemmMatrix a;  // [M, K]; transpose_a: [K, M]
  GemmMatrix b;  // [K, N]; transpose_b: [N, K]
  GemmMatrix c;  // [M, N], written; overlaps nothing, but may be an aux that is written
  bool transpose_a = false, transpose_b = false;
  DType input = DType::f32;   // of a and b: f32, bf16 or f16
  DType output = DType::f32;  // of c and aux: the same, or f32. Sums are f32
  float alpha = 1, beta = 0;
  const void* bias = nullptr;     // [N]
  DType bias_dtype = DType::f32;  // f32, or that of the inputs
  Activation activation = Activation::none;
  GemmMatrix aux;  // [M, N], optional: receives ab + bias
  bool aux_is_input = false;
  // Optional, beside a product of one group that has none of the above: receives the column sums of
  // b [N], or of a [M], stored [K, columns] without gaps.
  float* bias_gradient = nullptr;
  bool bias_gradient_of_a = false, adds_bias_gradient = false;
};

class CudaGemm {
 public:
  virtual ~CudaGemm() = default;

  // Any sizes, alignments and leading dimensions: what cuBLASLt does not take goes through a plain
  // kernel, logged once. K = 0 is a sum of nothing. Queued on `stream`; Stream{} is the room's own.
  virtual void run(const GemmArgs& args, Stream stream) = 0;
};

// cache_directory: empty for no timing. `room` must outlive the result.
std::unique_ptr<CudaGemm> make_cuda_gemm(CudaRoom& room, const std::string& cache_directory);

}  // namespace shoal::kernels
