// The values that change from step to step, in memory of the kernels' device.
#pragma once

#include <cstdint>

namespace shoal::kernels {

// A captured step reads them when it is replayed (decision 8). Only kernels access them
// (OptimizerKernels::set_step).
struct StepState {
  std::uint32_t step = 0;  // optimizer updates so far, including the current one
  float learning_rate = 0;
  float gradient_scale = 1;  // factor of the gradients in the update: unscale × clip
  std::uint32_t skip = 0;    // 1: the update changes nothing (gradients overflowed)
  float unscale = 1;         // factor of the gradients from backward, before clipping
  // Factor of the losses (loss_scale.h): 1 / the step's targets, if the host does not know their
  // number.
  float inverse_targets = 1;
  // f16 loss scaling (loss_scale.h): the scale that losses were multiplied with, and counters.
  float loss_scale = 1;
  std::uint32_t good_steps = 0;            // updates without overflow
  std::uint32_t shift_left = 1;            // overflows until the scale shrinks
  std::uint32_t overflows_at_minimum = 0;  // consecutive
};

}  // namespace shoal::kernels
