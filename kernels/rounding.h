// Stochastic rounding of f32 to bf16 (Zamirai et al., "Revisiting BFloat16 Training", 2020). A
// value is rounded to one of its two neighbours, with a higher probability for the nearer one, so
// that the expected result is the value. On average a parameter then keeps even updates far below
// half a unit in the last place, and needs no f32 master.
#pragma once

#include <bit>
#include <cstdint>

#include "shoal/kernels/random.h"

#ifdef __CUDACC__
#define SHOAL_ROUNDS __host__ __device__ inline
#else
#define SHOAL_ROUNDS inline
#endif

namespace shoal::kernels {

// Rounds x, given as f32 bits, to an f32 with a zero lower half. It takes the neighbour further
// from 0 with probability (x - lower) / (upper - lower). Only the upper half of the 32 bits of
// `random` is used. Values that bf16 represents, infinities and NaN are unchanged. A finite number
// stays finite.
SHOAL_ROUNDS std::uint32_t rounded_stochastically(std::uint32_t x, std::uint32_t random) {
  constexpr std::uint32_t kInfinity = 0x7f800000u, kLargest = 0x7f7f0000u, kUpper = 0xffff0000u;
  const std::uint32_t sign = x & 0x80000000u, magnitude = x & 0x7fffffffu;
  if (magnitude > kInfinity) return (x & kUpper) | 0x00400000u;
  if (magnitude == kInfinity) return x;
  const std::uint32_t sum = (magnitude + (random >> 16)) & kUpper;
  return sign | (sum > kLargest ? kLargest : sum);
}

// Selects the rounding bits of a tensor's elements (random.h). The key comes from the seed. The
// counter comes from the update's number, the parameter and the element's index in the *whole*
// parameter. Shards, tensor-parallel parts and replicas therefore round as one rank does.
struct RoundingPlace {
  std::uint64_t seed = 0;
  std::uint32_t parameter = 0;  // hash of its name
  // Element i here is element first + i of this rank's part of the parameter, row-major.
  std::int64_t first = 0;
  // Position of this part in the whole parameter: rows of `row` elements, `row_step` apart, consist
  // of runs of `run` elements, `run_step` apart, starting at `base`. run 0: one contiguous range.
  std::int64_t base = 0, row = 0, row_step = 0, run = 0, run_step = 0;

  SHOAL_ROUNDS std::uint64_t element(std::int64_t i) const {
    const std::int64_t at = first + i;
    if (run == 0) return static_cast<std::uint64_t>(base + at);
    const std::int64_t within = at % row;
    return static_cast<std::uint64_t>(base + at / row * row_step + within / run * run_step +
                                      within % run);
  }
  // Number of elements from i on that are also contiguous in the whole parameter; at most `count`.
  SHOAL_ROUNDS std::int64_t consecutive(std::int64_t i, std::int64_t count) const {
    if (run == 0) return count;
    const std::int64_t left = run - (first + i) % row % run;
    return left < count ? left : count;
  }
  // The key differs from those of dropout and initialisation.
  SHOAL_ROUNDS RandomSite site(const StepState* state) const {
    return {.seed = seed ^ 0x5bf03635f0a31e2dull, .state = state, .site = parameter};
  }
};

}  // namespace shoal::kernels
