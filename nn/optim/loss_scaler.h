// Loss scaling for f16 (Micikevicius et al., "Mixed Precision Training", 2018), with the arguments
// of SMP's DistributedOptimizer. The rule is in kernels/loss_scale.h, for device and host.
#pragma once

#include <cstdint>

#include "shoal/kernels/loss_scale.h"
#include "shoal/nn/optim/loss_scaler_options.h"

namespace shoal::nn {

// Everything needed for an exact resume.
struct LossScalerState {
  double scale = 1;
  std::int64_t good_steps = 0;
  std::int64_t shift_left = 1;
  std::int64_t overflows_at_minimum = 0;
  friend bool operator==(const LossScalerState&, const LossScalerState&) = default;
};

class LossScaler {
 public:
  // Throws on invalid options, naming the option.
  explicit LossScaler(const LossScalerOptions& options);
  // A scaler that always returns 1, for f32 and bf16.
  static LossScaler none();

  double scale() const { return state_.scale; }
  bool dynamic() const { return options_.dynamic; }
  // Call after each step. `overflow`: a rank's gradients contained inf or NaN, and the update was
  // skipped. Throws invalid_argument after `window` consecutive overflows at the minimum scale: the
  // run has diverged.
  void update(bool overflow);
  const LossScalerState& state() const { return state_; }
  void restore(const LossScalerState& state) { state_ = state; }

  // If the scale is kept in a device's StepState, kernels adjust it by rule() after each update
  // (StepOptions::scaling). put() writes this state into `state`; take() reads it back and throws
  // like update().
  kernels::LossScaleRule rule() const;
  void put(kernels::StepState& state) const;
  void take(const kernels::StepState& state);

 private:
  void check_diverged() const;
  LossScalerOptions options_;
  LossScalerState state_;
};

}  // namespace shoal::nn
