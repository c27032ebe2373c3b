// Declarations that nvcc provides to device code: thread indices, barriers, shuffles, intrinsics.
// The build includes this header in front of every .cu file.
#pragma once

#define __CUDACC__ 1

#include <bit>
#include <cstdint>
#include <cstring>
#include <source_location>

#include "support/emulated_gpu/block.h"
#include "vector_types.h"
#include <math.h>  // NOLINT: the functions without a namespace, as device code calls them

extern constinit thread_local uint3 threadIdx, blockIdx;
extern constinit thread_local dim3 blockDim, gridDim;
inline constexpr int warpSize = 32;

// Barriers. The source line of the call identifies a barrier.
inline void __syncthreads(std::source_location where = std::source_location::current()) {
  shoal::emulated_gpu::block_barrier(shoal::emulated_gpu::Vote::none, false, where);
}
inline int __syncthreads_or(int mine,
                            std::source_location where = std::source_location::current()) {
  return shoal::emulated_gpu::block_barrier(shoal::emulated_gpu::Vote::any, mine != 0, where);
}
inline int __syncthreads_and(int mine,
                             std::source_location where = std::source_location::current()) {
  return shoal::emulated_gpu::block_barrier(shoal::emulated_gpu::Vote::all, mine != 0, where);
}
inline int __syncthreads_count(int mine,
                               std::source_location where = std::source_location::current()) {
  return shoal::emulated_gpu::block_barrier(shoal::emulated_gpu::Vote::count, mine != 0, where);
}
inline void __syncwarp(unsigned mask = 0xffffffffu,
                       std::source_location where = std::source_location::current()) {
  int part = 0;
  shoal::emulated_gpu::in_warp(mask, false, [](shoal::emulated_gpu::Lanes) {}, &part, where);
}
inline void __threadfence() {}
inline void __threadfence_block() {}
inline void __threadfence_system() {}

namespace shoal::emulated_gpu {

template <typename T>
struct Shuffle {
  T value, result;
  unsigned from;
};

template <typename T>
T shuffle(unsigned mask, T value, unsigned from, Where where) {
  Shuffle<T> mine{value, value, from};
  in_warp(
      mask, false,
      [](Lanes lanes) {
        for (void* const lane : lanes) {
          if (!lane) continue;
          auto& to = *static_cast<Shuffle<T>*>(lane);
          // A source lane that does not take part makes the value undefined; here it is mostly NaN.
          if (const void* const source = lanes[to.from])
            to.result = static_cast<const Shuffle<T>*>(source)->value;
          else
            std::memset(&to.result, 0xff, sizeof(T));
        }
      },
      &mine, where);
  return mine.result;
}

struct Ballot {
  std::uint64_t value;
  unsigned result;
};
// The mask of lanes for which same(theirs, mine) is true.
template <typename Same>
unsigned ballot(unsigned mask, std::uint64_t value, Same, Where where) {
  Ballot mine{value, 0};
  in_warp(
      mask, false,
      [](Lanes lanes) {
        for (void* const lane : lanes) {
          if (!lane) continue;
          auto& to = *static_cast<Ballot*>(lane);
          for (unsigned other = 0; other < 32; ++other)
            if (lanes[other] && Same{}(static_cast<const Ballot*>(lanes[other])->value, to.value))
              to.result |= 1u << other;
        }
      },
      &mine, where);
  return mine.result;
}

// The last lane of the `width`-lane segment that contains `lane`.
inline unsigned last_of(unsigned lane, int width) {
  return lane | (static_cast<unsigned>(width) - 1);
}

}  // namespace shoal::emulated_gpu

template <typename T>
T __shfl_sync(unsigned mask, T value, int source, int width = 32,
              std::source_location where = std::source_location::current()) {
  const unsigned lane = shoal::emulated_gpu::lane(), inside = static_cast<unsigned>(width) - 1;
  return shoal::emulated_gpu::shuffle(
      mask, value, (lane & ~inside) | (static_cast<unsigned>(source) & inside), where);
}
template <typename T>
T __shfl_up_sync(unsigned mask, T value, unsigned by, int width = 32,
                 std::source_location where = std::source_location::current()) {
  const unsigned lane = shoal::emulated_gpu::lane(), inside = static_cast<unsigned>(width) - 1;
  return shoal::emulated_gpu::shuffle(mask, value, (lane & inside) < by ? lane : lane - by, where);
}
template <typename T>
T __shfl_down_sync(unsigned mask, T value, unsigned by, int width = 32,
                   std::source_location where = std::source_location::current()) {
  const unsigned lane = shoal::emulated_gpu::lane(),
                 last = shoal::emulated_gpu::last_of(lane, width);
  return shoal::emulated_gpu::shuffle(mask, value, by > last - lane ? lane : lane + by, where);
}
template <typename T>
T __shfl_xor_sync(unsigned mask, T value, int bits, int width = 32,
                  std::source_location where = std::source_location::current()) {
  const unsigned lane = shoal::emulated_gpu::lane(), from = lane ^ static_cast<unsigned>(bits);
  return shoal::emulated_gpu::shuffle(
      mask, value, from > shoal::emulated_gpu::last_of(lane, width) ? lane : from, where);
}
inline unsigned __ballot_sync(unsigned mask, int mine,
                              std::source_location where = std::source_location::current()) {
  return shoal::emulated_gpu::ballot(
      mask, mine != 0, [](std::uint64_t other, std::uint64_t) { return other != 0; }, where);
}
template <typename T>
unsigned __match_any_sync(unsigned mask, T value,
                          std::source_location where = std::source_location::current()) {
  std::uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(T));
  return shoal::emulated_gpu::ballot(
      mask, bits, [](std::uint64_t other, std::uint64_t own) { return other == own; }, where);
}

// One host thread runs all blocks of a launch, so these need no atomic instructions.
template <typename T>
T atomicAdd(T* place, T value) {
  const T before = *place;
  *place = before + value;
  return before;
}

inline int min(int a, int b) { return a < b ? a : b; }
inline int max(int a, int b) { return a > b ? a : b; }
inline int __popc(unsigned bits) { return std::popcount(bits); }
inline int __ffs(int bits) { return __builtin_ffs(bits); }

inline unsigned __float_as_uint(float x) { return std::bit_cast<unsigned>(x); }
inline float __uint_as_float(unsigned x) { return std::bit_cast<float>(x); }
inline long long __double_as_longlong(double x) { return std::bit_cast<long long>(x); }
inline double __longlong_as_double(long long x) { return std::bit_cast<double>(x); }
inline float __ll2float_rn(long long x) { return static_cast<float>(x); }
inline double __ll2double_rn(long long x) { return static_cast<double>(x); }
inline float __double2float_rn(double x) { return static_cast<float>(x); }

// Each operation rounds separately, because this is compiled without contraction.
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fsqrt_rn(float x) { return sqrtf(x); }
inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
// As in CUDA, the result is 0 if |b| is above 2^126, and NaN if a is then infinite.
inline float __fdividef(float a, float b) {
  if (fabsf(b) > 0x1p126f && fabsf(b) < INFINITY) return a * 0.0f;
  return a / b;
}
inline float __expf(float x) { return exp2f(x * 1.44269504088896341f); }
inline void sincospif(float x, float* sine, float* cosine) {
  // Subtracts whole turns, which is exact.
  const double angle = 3.141592653589793 * (static_cast<double>(x) - 2 * nearbyint(0.5 * x));
  *sine = static_cast<float>(sin(angle));
  *cosine = static_cast<float>(cos(angle));
}
