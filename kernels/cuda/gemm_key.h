// Everything that determines how a product runs: sizes, layouts, dtypes, epilogue and alignment,
// but no addresses. Host code only.
#pragma once

#include <cstdint>
#include <string>

#include "shoal/kernels/cuda/gemm.h"

namespace shoal::kernels {

// Work that cuBLASLt fuses into a product.
enum class GemmFusion : std::uint8_t {
  none,
  bias,
  sums_b,  // also stores the column sums of our b; sums_a: of a
  sums_a,
  gelu,  // tanh
  gelu_bias,
  gelu_aux,  // also stores the value before the activation
  gelu_aux_bias,
  dgelu,
};
inline bool fuses_bias(GemmFusion fusion) {
  return fusion == GemmFusion::bias || fusion == GemmFusion::gelu_bias ||
         fusion == GemmFusion::gelu_aux_bias;
}
inline bool fuses_sums(GemmFusion fusion) {
  return fusion == GemmFusion::sums_a || fusion == GemmFusion::sums_b;
}
inline bool fuses_aux(GemmFusion fusion) { return fusion >= GemmFusion::gelu_aux; }
inline bool fuses_activation(GemmFusion fusion) { return fusion >= GemmFusion::gelu; }

// Alignment that an epilogue's pointers need.
inline bool aligned_for_epilogue(const void* data) {
  return reinterpret_cast<std::uintptr_t>(data) % 16 == 0;
}

struct GemmKey {
  std::int64_t m = 0, n = 0, k = 0, groups = 1;
  std::int64_t lda = 0, ldb = 0, ldc = 0, ldaux = 0;
  std::int64_t stride_a = 0, stride_b = 0, stride_c = 0;
  // Alignment in bytes of all groups' first elements, at most 16.
  std::uint8_t align_a = 16, align_b = 16, align_c = 16;
  DType input = DType::f32, output = DType::f32;
  GemmFusion fusion = GemmFusion::none;
  bool transpose_a = false, transpose_b = false;
  bool reads_c = false;  // beta is not 0
  friend bool operator==(const GemmKey&, const GemmKey&) = default;
};
GemmKey gemm_key(const GemmArgs& args, GemmFusion fusion);
// "bf16>bf16 8192x3072x768 tn gelu_aux_bias ..."; equal only for equal keys.
std::string to_string(const GemmKey& key);
struct GemmKeyHash {
  std::size_t operator()(const GemmKey& key) const;
};

// The largest part of `args` that cuBLASLt can fuse. Its epilogues need a bias of c's dtype, an aux
// whose leading dimension is a multiple of eight elements, and 16-byte alignment of both (cuBLASLt
// chooses algorithms without checking it, hence aligned_for_epilogue). GELU is fused only for
// 16-bit results, since cuBLASLt's tanh is too imprecise for f32.
GemmFusion widest_fusion(const GemmArgs& args);
// The same fusion without the activation, which our own pass then applies.
GemmFusion without_activation(const GemmArgs& args);

// Fusion of the column sums that `args` wants, if cuBLASLt can compute them. They have c's dtype,
// so c must be f32. Returns `none` otherwise.
GemmFusion sums_fusion(const GemmArgs& args);

// cuBLASLt's matrices are column-major: a row-major [rows, columns] is its [columns, rows]. So
// c = ab becomes cᵀ = bᵀaᵀ, and our b is its A. Sizes are as stored, before transposition.
struct GemmLayout {
  std::uint64_t rows = 0, columns = 0;
  std::int64_t leading = 0, stride = 0;
};
struct GemmLayouts {
  GemmLayout a, b, c;  // cuBLASLt's A (our b), B (our a), C and D
};
GemmLayouts gemm_layouts(const GemmKey& key);

inline double gemm_operations(const GemmKey& key) {
  return 2.0 * static_cast<double>(key.m) * static_cast<double>(key.n) *
         static_cast<double>(key.k) * static_cast<double>(key.groups);
}

}  // namespace shoal::kernels
