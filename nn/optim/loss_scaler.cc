#include "shoal/nn/optim/loss_scaler.h"

#include <limits>

#include "shoal/runtime/base/error.h"

namespace shoal::nn {

LossScaler::LossScaler(const LossScalerOptions& options) : options_(options) {
  if (options_.backoff == 0) options_.backoff = 1 / options_.factor;
  constexpr double most = std::numeric_limits<float>::max();
  constexpr std::int64_t most_steps = std::numeric_limits<std::int32_t>::max();
  SHOAL_CHECK(options.init_scale > 0 && options.init_scale <= most,
              "a loss scale of {}; it is above 0 and fits into f32", options.init_scale);
  SHOAL_CHECK(options.factor > 1, "a loss scale factor of {}; it is above 1", options.factor);
  SHOAL_CHECK(options_.backoff > 0 && options_.backoff < 1,
              "a loss scale's backoff of {}; it is between 0 and 1", options_.backoff);
  SHOAL_CHECK(options.window > 0 && options.window <= most_steps, "a loss scale window of {} steps",
              options.window);
  SHOAL_CHECK(options.delayed_shift > 0 && options.delayed_shift <= most_steps,
              "a delayed shift of {}", options.delayed_shift);
  state_ = {options.init_scale, 0, options.delayed_shift, 0};
}

LossScaler LossScaler::none() { return LossScaler({.dynamic = false, .init_scale = 1}); }

kernels::LossScaleRule LossScaler::rule() const {
  return {.dynamic = options_.dynamic,
          .growth = static_cast<float>(options_.factor),
          .backoff = static_cast<float>(options_.backoff),
          .min_scale = static_cast<float>(options_.min_scale),
          .window = static_cast<std::uint32_t>(options_.window),
          .delayed_shift = static_cast<std::uint32_t>(options_.delayed_shift)};
}

void LossScaler::put(kernels::StepState& state) const {
  state.loss_scale = static_cast<float>(state_.scale);
  state.good_steps = static_cast<std::uint32_t>(state_.good_steps);
  state.shift_left = static_cast<std::uint32_t>(state_.shift_left);
  state.overflows_at_minimum = static_cast<std::uint32_t>(state_.overflows_at_minimum);
}

void LossScaler::take(const kernels::StepState& state) {
  if (!options_.dynamic) return;
  state_ = {static_cast<double>(state.loss_scale), state.good_steps, state.shift_left,
            state.overflows_at_minimum};
  check_diverged();
}

void LossScaler::update(bool overflow) {
  if (!options_.dynamic) return;
  kernels::StepState state;
  put(state);
  kernels::follow(rule(), overflow, state);
  take(state);
}

void LossScaler::check_diverged() const {
  if (state_.overflows_at_minimum < options_.window) return;
  throw Error(ErrorCode::invalid_argument,
              fmt::format("gradients overflowed {} times in a row at the smallest loss scale {}",
                          state_.overflows_at_minimum, options_.min_scale),
              "the run has diverged: lower the learning rate, or use bf16");
}

}  // namespace shoal::nn
