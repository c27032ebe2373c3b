// Dynamic loss scaling for f16 (Micikevicius et al., "Mixed Precision Training", 2018) as in
// torch.amp.GradScaler and SMP's DistributedOptimizer. The scale is part of the StepState and
// follows the result of each update on the device, so the host never waits for it.
#pragma once

#include <cstdint>

#include "shoal/kernels/step_state.h"

#ifdef __CUDACC__
#define SHOAL_SCALES __host__ __device__ inline
#else
#define SHOAL_SCALES inline
#endif

namespace shoal::kernels {

// Passed by value with every update. Defaults are GradScaler's.
struct LossScaleRule {
  bool dynamic = false;  // false: the scale stays
  float growth = 2, backoff = 0.5f, min_scale = 1;
  std::uint32_t window = 2000;      // updates without overflow before the scale grows
  std::uint32_t delayed_shift = 1;  // consecutive overflows that trigger a decrease
};

// Adjusts the scale after an update. `overflow`: the gradients contained inf or NaN, and the update
// was skipped. The scale does not grow beyond the finite range.
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

// Factor of a loss's gradients: `scale`, times the state's two factors if there is a state.
SHOAL_SCALES float whole_scale(float scale, const StepState* state) {
  return state ? scale * state->inverse_targets * state->loss_scale : scale;
}

}  // namespace shoal::kernels
