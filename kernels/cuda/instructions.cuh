// Instructions that C++ cannot express (PTX), and a block's dynamic shared memory. Tests replace
// this file with the emulated GPU's file (tests/support/emulated_gpu).
//
// Asynchronous copies and tensor-core products need sm_80. For older GPUs, the kernels that use
// them compile to traps, and host code such as attention.cc selects others.
//
// Matrix kernels use three instructions. A warp loads 8 x 8 matrices from shared memory; tensor
// cores multiply 16 x 16 by 16 x 8; copies from device to shared memory bypass registers. Lane l
// holds four elements of a result c [16, 8]: (l/4, 2(l%4)), (l/4, 2(l%4) + 1), and the same columns
// of row l/4 + 8.
#pragma once

#include <cstdint>

#include <cuda_bf16.h>
#include <cuda_fp16.h>

namespace shoal::kernels {

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800

// Copies 16 bytes; writes zeros if `inside` is false (`from` is then not read).
__device__ inline void copy_async(void* to, const void* from, bool inside) {
  const auto address = static_cast<std::uint32_t>(__cvta_generic_to_shared(to));
  const int bytes = inside ? 16 : 0;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(address), "l"(from),
               "r"(bytes)
               : "memory");
}
// Ends a group of copies. wait_for_copies<n> waits until at most n groups of this thread are
// pending.
__device__ inline void end_copies() { asm volatile("cp.async.commit_group;\n" ::: "memory"); }
template <int kGroups>
__device__ inline void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;\n" ::"n"(kGroups) : "memory");
}

// Loads four 8 x 8 matrices of 16-bit elements; lane l passes the address of row l%8 of matrix l/8.
__device__ inline void load_matrices(std::uint32_t (&m)[4], const void* row) {
  const auto address = static_cast<std::uint32_t>(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];\n"
               : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
               : "r"(address)
               : "memory");
}
__device__ inline void load_matrices_transposed(std::uint32_t (&m)[4], const void* row) {
  const auto address = static_cast<std::uint32_t>(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];\n"
               : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
               : "r"(address)
               : "memory");
}

// c += a [16, 16] · b [16, 8]
template <typename T>
__device__ void multiply(float (&c)[4], const std::uint32_t (&a)[4], std::uint32_t b0,
                         std::uint32_t b1);
template <>
__device__ inline void multiply<__nv_bfloat16>(float (&c)[4], const std::uint32_t (&a)[4],
                                               std::uint32_t b0, std::uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};\n"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
template <>
__device__ inline void multiply<__half>(float (&c)[4], const std::uint32_t (&a)[4],
                                        std::uint32_t b0, std::uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};\n"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

#else

__device__ inline void copy_async(void*, const void*, bool) { __trap(); }
__device__ inline void end_copies() { __trap(); }
template <int kGroups>
__device__ inline void wait_for_copies() {
  __trap();
}
__device__ inline void load_matrices(std::uint32_t (&m)[4], const void*) {
  m[0] = m[1] = m[2] = m[3] = 0;
  __trap();
}
__device__ inline void load_matrices_transposed(std::uint32_t (&m)[4], const void* row) {
  load_matrices(m, row);
}
template <typename T>
__device__ void multiply(float (&)[4], const std::uint32_t (&)[4], std::uint32_t, std::uint32_t) {
  __trap();
}

#endif

// 2^x to two units of the last place. Results that would be denormal in f32 are 0. A denormal
// argument gives 1.
__device__ inline float exp2_quick(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// Hides a register's value from the compiler, so that it cannot use what it knows about the value.
__device__ inline void forget(std::uint32_t& value) { asm volatile("" : "+r"(value)); }

// The block's dynamic shared memory, aligned to 16 bytes.
template <typename T>
__device__ T* dynamic_shared() {
  extern __shared__ __align__(16) unsigned char dynamic_shared_memory[];
  return reinterpret_cast<T*>(dynamic_shared_memory);
}

}  // namespace shoal::kernels
