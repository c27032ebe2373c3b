// What decides how a product runs: sizes, layouts, dtypes, epilogue and alignment, but no address.
// Host code only.
#pragma once

#include <cstdint>
#include <string>

#include "shoal/kernels/cuda/gemm.h"

namespace shoal::kernels {

// What cuBLASLt does to a product before storing it.
enum class GemmFusion : std::uint8_t {
  none,
  bias,
  sums_b,  // the column sums of our b, or a, are stored too
  sums_a,
  gelu,  // tanh
  gelu_bias,
  gelu_aux,  // the value before the activation is stored too
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

// What an epilogue's pointers must be.
inline bool aligned_for_epilogue(const void* data) {
  return reinterpret_cast<std::uintptr_t>(data) % 16 == 0;
}

struct GemmKey {
  std::int64_t m = 0, n = 0, k = 0, groups = 1;
  std::int64_t lda = 0, ldb = 0, ldc = 0, ldaux = 0;
  std::int64_t stride_a = 0, stride_b = 0, stride_c = 0;
  // Bytes that every group's first element lies at a multiple of, at most 16.
  std::uint8_t align_a = 16, align_b = 16, align_c = 16;
  DType input = DType::f32, output = DType::f32;
  GemmFusion fusion = GemmFusion::none;
  bool transpose_a = false, transpose_b = false;
  bool reads_c = false;  // beta is not 0
  friend bool operator==(const GemmKey&, const GemmKey&) = default;
};
GemmKey gemm_key(const GemmArgs& args, GemmFusion fusion);
// "bf16>bf16 8192x3072x768 tn gelu_aux_bias ..."; equal for equal keys only.
std::string to_string(const GemmKey& key);
struct GemmKeyHash {
  std::size_t operator()(const GemmKey& key) const;
};

// The most that cuBLASLt may fuse of what `args` asks for: not where the dtypes are ones that its
// epilogues lack (bias of c's dtype; GELU is trusted with 16-bit results only, f32 ones want more
// digits than its tanh has), where aux is not in steps of eight elements, or where bias or aux is
// not aligned to 16 bytes: an algorithm is chosen without asking that (aligned_for_epilogue).
GemmFusion widest_fusion(const GemmArgs& args);
// Without the activation: what is left then goes through a pass of our own.
GemmFusion without_activation(const GemmArgs& args);

// The sums that `args` wants beside its product, where cuBLASLt can give them: they are of c's
// dtype, so of an f32 c alone. Else none.
GemmFusion sums_fusion(const GemmArgs& args);

// cuBLASLt's matrices are column-major: a row-major [rows, columns] is its [columns, rows], and
// c = ab becomes cᵀ = bᵀaᵀ, so b is its A. As stored, before transposition.
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
