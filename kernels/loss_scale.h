// Dynamic loss scaling for f16 (Micikevicius et al., "Mixed Precision Training", 2018) as
// torch.amp.GradScaler and SMP's DistributedOptimizer do it, in the StepState: the scale follows
// what becomes of each update, where the update is, and nobody waits for it.
#pragma once

#include <cstdint>

#include "shoal/kernels/random.h"

#ifdef __CUDACC__
#define SHOAL_SCALES __host__ __device__ inline
#else
#define SHOAL_SCALES inline
#endif

namespace shoal::kernels {

// Passed by value with every update; GradScaler's numbers.
struct LossScaleRule {
  bool dynamic = false;  // false: the scale stays
  float growth = 2, backoff = 0.5f, min_scale = 1;
  std::uint32_t window = 2000;      // updates without overflow before the scale grows
  std::uint32_t delayed_shift = 1;  // overflows in a row that are borne before it shrinks
};

// After an update; `overflow`: gradients held inf or NaN, and the update was left out. A scale that
// would no longer be finite stays as it is.
SHOAL_SCALES void follow(const LossScaleRule& rule, bool overflow, StepState& state) {
  if (!rule.dynamic) return;
  if (!overflow) {
    state.overflows_at_minimum = 0;
    if (++state.good_steps % rule.window != 0) return;
    const float grown = state.loss_scale * rule.growth;
    if (grown <= 3.402823466e38f) state.loss_scale = grown;
    state.shift_left = rule.delayed_shift;
    return;
  }
  state.good_steps = 0;
  if (state.loss_scale <= rule.min_scale) ++state.overflows_at_minimum;
  if (state.shift_left > 1) {
    --state.shift_left;
    return;
  }
  const float shrunk = state.loss_scale * rule.backoff;
  state.loss_scale = shrunk > rule.min_scale ? shrunk : rule.min_scale;
}

// What gradients of a loss are multiplied with: `scale`, and the state's two where there is one.
SHOAL_SCALES float whole_scale(float scale, const StepState* state) {
  return state ? scale * state->inverse_targets * state->loss_scale : scale;
}

}  // namespace shoal::kernels
