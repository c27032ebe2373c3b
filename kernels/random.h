// Random numbers that do not depend on the layout (decision 10): Philox 4x32-10 (Salmon et al.,
// "Parallel Random Numbers: As Easy as 1, 2, 3", SC'11). The key is the seed, and the counter is
// the global place where a number is used, never a local stride. So tp, pp, dp, recomputation and
// microbatching change no random number.
#pragma once

#include <array>
#include <cstdint>

#include "shoal/kernels/step_state.h"

namespace shoal::kernels {

// Identifies one use of random numbers: one operation of one forward pass.
struct RandomSite {
  std::uint64_t seed = 0;            // Philox key
  const StepState* state = nullptr;  // counter word 3 is state->step; null: step 0
  std::uint32_t site = 0;            // counter word 2: hash of module path and call ordinal
  // Row b of a batch is sample `sample_first + b * sample_stride` of the global batch (< 2^24).
  std::uint32_t sample_first = 0;
  std::uint32_t sample_stride = 1;
};

// An element is identified inside its sample by one number < 2^40 of global coordinates. For a
// [T, C] activation it is t * C_global + c. For attention probabilities it is (h * P + q) * P + k,
// where P is the model's largest position, not the length of the batch.
// Counter = {element/4 low 32, sample << 8 | element/4 high 8, site, step}; lane = element % 4.
std::array<std::uint32_t, 4> philox(std::uint64_t key, std::array<std::uint32_t, 4> counter);

// The 32 random bits of one element; the scalar form of the kernels' four-lane code.
std::uint32_t random_bits(const RandomSite& site, std::uint32_t sample_ordinal,
                          std::uint64_t element);

// Dropout keeps an element if its bits are >= this threshold: P(drop) = threshold / 2^32.
std::uint32_t dropout_threshold(float probability);

// Uniform in [0, 1) from the upper 24 bits.
inline float uniform(std::uint32_t bits) { return static_cast<float>(bits >> 8) * 0x1p-24f; }

}  // namespace shoal::kernels
