// Stochastic rounding of f32 to bf16 (Zamirai et al., "Revisiting BFloat16 Training", 2020): to one
// of the two neighbours, to the nearer one the more often, so that the mean of many roundings is
// the number. A parameter then keeps in the mean what an update adds, were it far below half a unit
// of its last place, and needs no f32 master.
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

// The f32 whose lower half is 0 that x, given as its bits, is rounded to: with probability
// (x - lower) / (upper - lower) the neighbour further from 0. `random`: 32 bits, of which the upper
// half counts. What bf16 has stays; so do infinities and NaN. A finite number stays finite.
SHOAL_ROUNDS std::uint32_t rounded_stochastically(std::uint32_t x, std::uint32_t random) {
  constexpr std::uint32_t kInfinity = 0x7f800000u, kLargest = 0x7f7f0000u, kUpper = 0xffff0000u;
  const std::uint32_t sign = x & 0x80000000u, magnitude = x & 0x7fffffffu;
  if (magnitude > kInfinity) return (x & kUpper) | 0x00400000u;
  if (magnitude == kInfinity) return x;
  const std::uint32_t sum = (magnitude + (random >> 16)) & kUpper;
  return sign | (sum > kLargest ? kLargest : sum);
}

// Where a tensor's elements draw the bits of their rounding (random.h): the key is made of the
// seed; the counter of the update's number, the parameter and the element of the *whole* parameter,
// so that shards and parts of tensor parallelism round as one rank does, and replicas alike.
struct RoundingPlace {
  std::uint64_t seed = 0;
  std::uint32_t parameter = 0;  // hash of its name
  // Element i here is element first + i of what this rank has of the parameter, row-major...
  std::int64_t first = 0;
  // ...of which this is where it lies in the whole one: rows of `row` elements, `row_step` apart,
  // are made of runs of `run` elements, `run_step` apart, from `base` on. run 0: all in one.
  std::int64_t base = 0, row = 0, row_step = 0, run = 0, run_step = 0;

  SHOAL_ROUNDS std::uint64_t element(std::int64_t i) const {
    const std::int64_t at = first + i;
    if (run == 0) return static_cast<std::uint64_t>(base + at);
    const std::int64_t within = at % row;
    return static_cast<std::uint64_t>(base + at / row * row_step + within / run * run_step +
                                      within % run);
  }
  // How many from element i on follow each other in the whole parameter, too; at most `count`.
  SHOAL_ROUNDS std::int64_t consecutive(std::int64_t i, std::int64_t count) const {
    if (run == 0) return count;
    const std::int64_t left = run - (first + i) % row % run;
    return left < count ? left : count;
  }
  // Another key than dropout's and that of initial values.
  SHOAL_ROUNDS RandomSite site(const StepState* state) const {
    return {.seed = seed ^ 0x5bf03635f0a31e2dull, .state = state, .site = parameter};
  }
};

}  // namespace shoal::kernels
