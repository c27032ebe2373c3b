// Options of f16 loss scaling (loss_scaler.h).
//
//   plan.precision = {.dtype = DType::f16, .loss_scaling = LossScalerOptions{.init_scale = 65536}};
#pragma once

#include <cstdint>

namespace shoal::nn {

struct LossScalerOptions {
  bool dynamic = true;
  double init_scale = 4294967296.0;  // 2^32; the constant scale if not dynamic
  double factor = 2;                 // growth
  double backoff = 0;                // factor on overflow; 0: 1 / factor
  std::int64_t window = 1000;        // updates without overflow before the scale grows
  double min_scale = 1;
  std::int64_t delayed_shift = 1;  // consecutive overflows before the scale shrinks
  bool operator==(const LossScalerOptions&) const = default;
};

}  // namespace shoal::nn
