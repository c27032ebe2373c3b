// Numbers that differ from step to step and that the host knows before the step. They are set in
// the StepState so that a captured step can be replayed without waiting for earlier steps.
#pragma once

#include <cstdint>

#include "shoal/kernels/loss_scale.h"
#include "shoal/kernels/step_state.h"

namespace shoal::kernels {

// Exceeds the number of steps that may be queued before the host reads their results.
inline constexpr std::uint32_t kRates = 1024;

// Passed by value.
struct StepNumbers {
  float learning_rate = 0, unscale = 1, inverse_targets = 1;  // as in StepState
  // Ring of upcoming learning rates, [kRates] f32 in device memory; null: the step uses
  // `learning_rate`. A schedule counts updates, and a skipped step makes no update. If the host
  // does not know yet which steps were skipped, `update` is the highest zero-based update index
  // that this step can have, and `learning_rate`, its rate, is stored at entry update % kRates. The
  // step then uses entry state.step % kRates.
  float* rates = nullptr;
  std::uint32_t update = 0;
};

SHOAL_SCALES void set_numbers(StepState& state, const StepNumbers& numbers) {
  state.learning_rate = numbers.learning_rate;
  state.unscale = numbers.unscale;
  state.inverse_targets = numbers.inverse_targets;
  if (numbers.rates == nullptr) return;
  numbers.rates[numbers.update % kRates] = numbers.learning_rate;
  state.learning_rate = numbers.rates[state.step % kRates];
}

}  // namespace shoal::kernels
