// Loss scaling for f16 (Micikevicius et al., "Mixed Precision Training", 2018), with the arguments
// of SMP's DistributedOptimizer.
#pragma once

#include <cstdint>

namespace shoal::nn {

struct LossScalerOptions {
  bool dynamic = true;
  double init_scale = 4294967296.0;  // 2^32; the scale itself when not dynamic
  double factor = 2;                 // growth, and its inverse on overflow
  std::int64_t window = 1000;        // updates without overflow before the scale grows
  double min_scale = 1;
  std::int64_t delayed_shift = 1;  // overflows in a row that are borne before the scale shrinks
};

// Everything that has to be kept for an exact resume.
struct LossScalerState {
  double scale = 1;
  std::int64_t good_steps = 0;
  std::int64_t shift_left = 1;
  std::int64_t overflows_at_minimum = 0;
};

class LossScaler {
 public:
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

 private:
  LossScalerOptions options_;
  LossScalerState state_;
};

}  // namespace shoal::nn
