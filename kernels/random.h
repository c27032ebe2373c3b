// Random numbers that do not know the layout (decision 10): Philox 4x32-10 (Salmon et al.,
// "Parallel Random Numbers: As Easy as 1, 2, 3", SC'11), keyed by the seed and counted by where a
// number is used, never by a local stride, so that tp, pp, dp, recomputation and microbatching
// change nothing.
#pragma once

#include <array>
#include <cstdint>

namespace shoal::kernels {

// Values that change from step to step and live in memory of the kernels' device, so that a
// captured step can be replayed (decision 8). Only kernels touch it there
// (OptimizerKernels::set_step).
struct StepState {
  std::uint32_t step = 0;  // optimizer steps done
  float learning_rate = 0;
  float gradient_scale = 1;  // what gradients are multiplied with before the update: unscale × clip
  std::uint32_t skip = 0;    // 1: leave everything as it is (loss scaling met an inf)
  float unscale = 1;         // of the gradients as backward left them, before clipping
  // What losses are multiplied with (loss_scale.h): 1 / the step's targets, where that is not a
  // number of the host.
  float inverse_targets = 1;
  // Of f16 (loss_scale.h): what losses were multiplied with, beside `unscale`, and its counters.
  float loss_scale = 1;
  std::uint32_t good_steps = 0;            // updates without overflow
  std::uint32_t shift_left = 1;            // overflows until the scale shrinks
  std::uint32_t overflows_at_minimum = 0;  // in a row
};

// Where a random tensor is used. One Site is one operation of one forward pass.
struct RandomSite {
  std::uint64_t seed = 0;            // Philox key
  const StepState* state = nullptr;  // counter word 3 is state->step; null: step 0
  std::uint32_t site = 0;            // counter word 2: hash of module path and call ordinal
  // Row b of a batch is sample `sample_first + b * sample_stride` of the global batch (< 2^24).
  std::uint32_t sample_first = 0;
  std::uint32_t sample_stride = 1;
};

// The element's coordinates inside its sample, as one number < 2^40, in global terms: for a
// [T, C] activation t * C_global + c; for attention probabilities (h * P + q) * P + k, where P is
// the largest position of the model, not the length of the batch.
// Counter = {element/4 low 32, sample << 8 | element/4 high 8, site, step}; lane = element % 4.
std::array<std::uint32_t, 4> philox(std::uint64_t key, std::array<std::uint32_t, 4> counter);

// The 32 random bits of one element; the plain version of what kernels do four lanes at a time.
std::uint32_t random_bits(const RandomSite& site, std::uint32_t sample_ordinal,
                          std::uint64_t element);

// Dropout keeps an element when its bits are at least this: P(drop) = threshold / 2^32.
std::uint32_t dropout_threshold(float probability);

// Uniform in [0, 1) from the upper 24 bits.
inline float uniform(std::uint32_t bits) { return static_cast<float>(bits >> 8) * 0x1p-24f; }

}  // namespace shoal::kernels
