// kernels/cuda/instructions.cuh in C++. A warp's operations exchange the values of its lanes.
// NVIDIA's PTX ISA defines each operation and which lane holds which element ("Warp-level matrix
// instructions", "cp.async").
#pragma once

#include <cfloat>
#include <cmath>
#include <cstdint>

#include "support/emulated_gpu/block.h"
#include <cuda_bf16.h>
#include <cuda_fp16.h>

namespace shoal::kernels {

inline void copy_async(void* to, const void* from, bool inside) {
  emulated_gpu::copy_later(to, from, inside);
}
inline void end_copies() { emulated_gpu::end_group_of_copies(); }
template <int kGroups>
inline void wait_for_copies() {
  emulated_gpu::wait_for_groups_of_copies(kGroups);
}

namespace emulated {

struct MatrixRow {
  const void* row;
  std::uint32_t* m;
};
void load_matrices(emulated_gpu::Lanes lanes);
void load_matrices_transposed(emulated_gpu::Lanes lanes);

struct Product {
  float* c;
  const std::uint32_t* a;
  std::uint32_t b[2];
};
void multiply_bf16(emulated_gpu::Lanes lanes);
void multiply_f16(emulated_gpu::Lanes lanes);

template <typename T>
constexpr auto kMultiply = &multiply_bf16;
template <>
inline constexpr auto kMultiply<__half> = &multiply_f16;

}  // namespace emulated

inline void load_matrices(std::uint32_t (&m)[4], const void* row,
                          emulated_gpu::Where where = emulated_gpu::Where::current()) {
  emulated::MatrixRow part{row, m};
  emulated_gpu::in_warp(0xffffffffu, true, &emulated::load_matrices, &part, where);
}
inline void load_matrices_transposed(std::uint32_t (&m)[4], const void* row,
                                     emulated_gpu::Where where = emulated_gpu::Where::current()) {
  emulated::MatrixRow part{row, m};
  emulated_gpu::in_warp(0xffffffffu, true, &emulated::load_matrices_transposed, &part, where);
}

template <typename T>
void multiply(float (&c)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1,
              emulated_gpu::Where where = emulated_gpu::Where::current()) {
  emulated::Product part{c, a, {b0, b1}};
  emulated_gpu::in_warp(0xffffffffu, true, emulated::kMultiply<T>, &part, where);
}

inline float exp2_quick(float x) {
  const float y = std::exp2(x);
  return y < FLT_MIN ? 0.0f : y;  // NaN stays NaN
}

inline void forget(std::uint32_t& value) { asm volatile("" : "+r"(value)); }

template <typename T>
T* dynamic_shared() {
  return reinterpret_cast<T*>(emulated_gpu::dynamic_shared_memory());
}

}  // namespace shoal::kernels
