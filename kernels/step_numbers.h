// What differs from step to step and is known before the step: set in the StepState, so that a
// captured step can be replayed and nobody waits for what became of the steps before.
#pragma once

#include <cstdint>

#include "shoal/kernels/loss_scale.h"
#include "shoal/kernels/random.h"

namespace shoal::kernels {

// More than steps may be queued without anybody reading what became of them.
inline constexpr std::uint32_t kRates = 1024;

// Passed by value.
struct StepNumbers {
  float learning_rate = 0, unscale = 1, inverse_targets = 1;  // StepState's
  // A schedule counts updates, and a step that is left out is none: where the host does not know
  // yet which ones were, it gives the rate of update number `update` (from 0), the highest that
  // this step may be, into a table of those that may come next: entry update % kRates of `rates`,
  // [kRates] f32 where the kernels are. The step takes entry state.step % kRates. Null: it takes
  // `learning_rate`.
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
