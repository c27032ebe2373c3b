// Loss scaling for f16 (Micikevicius et al., "Mixed Precision Training", 2018), with the arguments
// of SMP's DistributedOptimizer. How a scale moves is kernels/loss_scale.h's, on the device or
// here.
#pragma once

#include <cstdint>

#include "shoal/kernels/loss_scale.h"

namespace shoal::nn {

struct LossScalerOptions {
  bool dynamic = true;
  double init_scale = 4294967296.0;  // 2^32; the scale itself when not dynamic
  double factor = 2;                 // growth
  double backoff = 0;                // on overflow; 0: 1 / factor
  std::int64_t window = 1000;        // updates without overflow before the scale grows
  double min_scale = 1;
  std::int64_t delayed_shift = 1;  // overflows in a row that are borne before the scale shrinks
  bool operator==(const LossScalerOptions&) const = default;
};

// Everything that has to be kept for an exact resume.
struct LossScalerState {
  double scale = 1;
  std::int64_t good_steps = 0;
  std::int64_t shift_left = 1;
  std::int64_t overflows_at_minimum = 0;
  friend bool operator==(const LossScalerState&, const LossScalerState&) = default;
};

class LossScaler {
 public:
  // Refuses numbers that are none of a scale's, each by name.
  explicit LossScaler(const LossScalerOptions& options);
  // A scaler that always says 1, for f32 and bf16.
  static LossScaler none();

  double scale() const { return state_.scale; }
  bool dynamic() const { return options_.dynamic; }
  // After a step: `overflow` (any rank's gradients held inf or NaN) means the update was skipped.
  // Throws invalid_argument when the scale is at its minimum and gradients still overflow `window`
  // times in a row: the run has diverged.
  void update(bool overflow);
  const LossScalerState& state() const { return state_; }
  void restore(const LossScalerState& state) { state_ = state; }

  // The same with the scale in a StepState where the kernels are, which moves it by rule() with
  // each update (StepOptions::scaling): put() writes this state into it, take() reads it back and
  // throws as update() does.
  kernels::LossScaleRule rule() const;
  void put(kernels::StepState& state) const;
  void take(const kernels::StepState& state);

 private:
  void check_diverged() const;
  LossScalerOptions options_;
  LossScalerState state_;
};

}  // namespace shoal::nn
