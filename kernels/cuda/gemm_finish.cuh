// Launchers of gemm_finish.cu: a plain product for cases that cuBLASLt does not support, and the
// steps after a product that no cuBLASLt epilogue does. Matrices are row-major; `leading` is in
// elements.
#pragma once

#include <cstdint>

#include <cuda_runtime_api.h>

#include "shoal/kernels/cuda/vector.cuh"

namespace shoal::kernels::cuda {

enum class GemmActivation : std::uint8_t { none, gelu_tanh, gelu_erf, tanh, relu };

// c = alpha·ab + beta·c; element (i, p) of a in group g is a[g·group + i·row + p·column].
struct PlainProduct {
  std::int64_t m, n, k, groups;
  const void *a, *b;
  void* c;
  std::int64_t a_group, a_row, a_column, b_group, b_row, b_column, c_group, c_row;
  DType input, output;  // output: the same, or f32
  float alpha, beta;
};
cudaError_t launch_plain_product(const PlainProduct& args, cudaStream_t stream);

// v = product + bias; kept = v; out = activation(v), or v · activation'(gate). The matrices are
// [rows, columns] of `type`; only the product may have another type. Matrices of `type` may share
// memory.
struct GemmFinish {
  std::int64_t rows, columns;
  const void* product;  // null: zeros
  std::int64_t product_leading;
  DType product_type;  // `type`, or f32
  const void* bias;    // null: none
  DType bias_type;
  const void* gate;  // null: none
  std::int64_t gate_leading;
  void* kept;  // null: not kept
  std::int64_t kept_leading;
  void* out;
  std::int64_t out_leading;
  DType type;
  GemmActivation activation;
};
cudaError_t launch_gemm_finish(const GemmFinish& args, cudaStream_t stream);

}  // namespace shoal::kernels::cuda
