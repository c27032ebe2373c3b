// Stochastic rounding of f32 to bf16 (Zamirai et al., "Revisiting BFloat16 Training", 2020). A
// value is rounded to one of its two neighbours, with a higher probability for the nearer one, so
// that the expected result is the value. On average a parameter then keeps even updates far below
// half a unit in the last place, and needs no f32 master.
#pragma once

#include <bit>
#include <cstdint>

#include "shoal/kernels/element_place.h"
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
struct RoundingPlace : ElementPlace {
  std::uint64_t seed = 0;
  std::uint32_t parameter = 0;  // hash of its name

  // The key differs from those of dropout and initialisation.
  SHOAL_ROUNDS RandomSite site(const StepState* state) const {
    return {.seed = seed ^ 0x5bf03635f0a31e2dull, .state = state, .site = parameter};
  }
};

}  // namespace shoal::kernels
