#include "shoal/nn/optim/loss_scaler.h"

#include <algorithm>

#include "shoal/runtime/base/error.h"

namespace shoal::nn {

LossScaler::LossScaler(const LossScalerOptions& options) : options_(options) {
  SHOAL_CHECK(options.init_scale > 0, "a loss scale of {}; it is above 0", options.init_scale);
  SHOAL_CHECK(options.factor > 1, "a loss scale factor of {}; it is above 1", options.factor);
  SHOAL_CHECK(options.window > 0, "a loss scale window of {} steps", options.window);
  SHOAL_CHECK(options.delayed_shift > 0, "a delayed shift of {}", options.delayed_shift);
  state_ = {options.init_scale, 0, options.delayed_shift, 0};
}

LossScaler LossScaler::none() { return LossScaler({.dynamic = false, .init_scale = 1}); }

void LossScaler::update(bool overflow) {
  if (!options_.dynamic) return;
  if (!overflow) {
    state_.overflows_at_minimum = 0;
    if (++state_.good_steps % options_.window != 0) return;
    state_.scale *= options_.factor;
    state_.shift_left = options_.delayed_shift;
    return;
  }
  state_.good_steps = 0;
  if (state_.scale <= options_.min_scale && ++state_.overflows_at_minimum >= options_.window)
    throw Error(ErrorCode::invalid_argument,
                fmt::format("gradients overflowed {} times in a row at the smallest loss scale {}",
                            state_.overflows_at_minimum, options_.min_scale),
                "the run has diverged: lower the learning rate, or use bf16");
  if (state_.shift_left > 1)
    --state_.shift_left;
  else
    state_.scale = std::max(state_.scale / options_.factor, options_.min_scale);
}

}  // namespace shoal::nn
