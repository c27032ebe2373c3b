// SIMD loops of OptimizerKernels, over `count` elements from `first` on the calling thread, and the
// factors of each update rule. Factors are computed in f64 from settings and step, and applied in
// f32.
#pragma once

#include "shoal/kernels/optimizer.h"

namespace shoal::kernels {

struct AdamWFactors {
  float gradient_scale, learning_rate, decay, one_minus_beta1, beta2, one_minus_beta2;
  float step_size;    // lr / (1 - beta1^t)
  float correction2;  // sqrt(1 - beta2^t)
  float epsilon;
  // For LAMB's direction.
  float inverse_correction1, inverse_correction2, weight_decay;

  explicit AdamWFactors(const AdamWArgs& args);
};

struct SgdFactors {
  float gradient_scale, weight_decay, momentum, one_minus_dampening, learning_rate;
  bool first;  // the momentum buffer is not initialised yet

  explicit SgdFactors(const SgdArgs& args);
};

struct AdafactorFactors {
  double kept;  // 1 - t^decay_rate
  float gradient_scale, decay, epsilon;

  AdafactorFactors(const AdamWArgs& args, double decay_rate);
};

void adamw_range(const AdamWArgs& args, const AdamWFactors& factors, std::int64_t first,
                 std::int64_t count);
void lion_range(const AdamWArgs& args, const AdamWFactors& factors, std::int64_t first,
                std::int64_t count);
void sgd_range(const SgdArgs& args, const SgdFactors& factors, std::int64_t first,
               std::int64_t count);
// Updates LAMB's moments and writes direction [count] = r of the elements (optimizer.h).
void lamb_moments_range(const AdamWArgs& args, const AdamWFactors& factors, std::int64_t first,
                        std::int64_t count, float* direction);
// master -= rate * r; also refreshes the parameter's copy.
void lamb_apply_range(const AdamWArgs& args, const AdamWFactors& factors, float rate,
                      std::int64_t first, std::int64_t count);

// Adds the squares of g to `columns` [count]. Returns their sum.
double factored_sums_range(const AdamWArgs& args, std::int64_t first, std::int64_t count,
                           double* columns);
// Adafactor's u is g times `row` times columns [count], or g / sqrt(v) if `columns` is null.
// Returns the sum of u*u. Advances v first.
double adafactor_moments_range(const AdamWArgs& args, const AdafactorFactors& factors, float row,
                               const float* columns, std::int64_t first, std::int64_t count);
// master *= decay; master -= rate * u.
void adafactor_apply_range(const AdamWArgs& args, const AdafactorFactors& factors, float rate,
                           float row, const float* columns, std::int64_t first, std::int64_t count);

double sum_of_squares_range(const ConstView& x, std::int64_t first, std::int64_t count);
bool non_finite_range(const ConstView& x, std::int64_t first, std::int64_t count);

}  // namespace shoal::kernels
