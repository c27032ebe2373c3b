// Optimizer update rules over flat buffers, norms, clipping. Sizes are in elements; dtypes are f32
// unless stated otherwise.
#pragma once

#include <optional>
#include <span>

#include "shoal/kernels/loss_scale.h"
#include "shoal/kernels/rounding.h"
#include "shoal/kernels/step_numbers.h"
#include "shoal/kernels/step_state.h"
#include "shoal/runtime/device/device.h"
#include "shoal/runtime/tensor/tensor.h"

namespace shoal::kernels {

// AdamW (Loshchilov & Hutter, 2019) as in torch.optim.AdamW. With g = gradient_scale * gradient and
// t = state->step:
//   p *= 1 - lr*weight_decay; m += (1 - beta1)*(g - m); v = beta2*v + (1 - beta2)*g*g;
//   p -= lr/(1 - beta1^t) * m / (sqrt(v)/sqrt(1 - beta2^t) + epsilon).
// t is the one-based number of this update. The owner of the state advances it once per step,
// before the first update. Factors are computed in f64 and applied in f32. If state->skip is set,
// no buffer changes.
struct AdamWArgs {
  View master;         // [n] f32; with `rounding`, the bf16 parameter itself
  View first_moment;   // [n] f32
  View second_moment;  // [n] f32
  ConstView gradient;  // [n] f32
  View parameter;      // [n] bf16/f16 copy to refresh; undefined: the master is the parameter
  // No f32 masters: p is widened, updated in f32 as above and rounded stochastically.
  std::optional<RoundingPlace> rounding = {};
  double beta1 = 0.9, beta2 = 0.999, epsilon = 1e-8, weight_decay = 0;
  const StepState* state = nullptr;  // never null; read when the update runs
};

// Lion (Chen et al., 2023), with AdamWArgs, whose second_moment and epsilon it does not read:
//   p *= 1 - lr*weight_decay; p -= lr * sign(m + (1 - beta1)*(g - m)); m += (1 - beta2)*(g - m).
// The sign of 0 is 0.

// torch.optim.SGD: g += weight_decay*p; at the first update (state->step == 1) buf = g, otherwise
// buf = momentum*buf + (1 - dampening)*g; p -= lr * (nesterov ? g + momentum*buf : buf).
struct SgdArgs {
  View master, momentum_buffer;  // momentum_buffer is undefined if momentum is 0
  ConstView gradient;
  View parameter;
  double momentum = 0, dampening = 0, weight_decay = 0;
  bool nesterov = false;
  const StepState* state = nullptr;
};

// LAMB (You et al., 2020) for tensors that share what adamw_many() requires. With AdamW's m and v:
//   r = m̂ / (sqrt(v̂) + epsilon) + weight_decay*p; p -= lr * trust * r,
//   trust = min(|p| / |r|, max_trust_ratio), or 1 if either norm is 0.
// The update is split in two calls so that ranks with parts of a tensor can add up the sums of
// squares in between.
struct LambArgs {
  std::span<const AdamWArgs> tensors;
  View squares;  // [tensors, 2] f64: sums of squares of p and of r
  double max_trust_ratio = 10;
};

// Adafactor (Shazeer & Stern, 2018) as transformers' Adafactor with scale_parameter, relative_step
// and warmup_init off and without beta1, for tensors that share what adamw_many() requires. With
// g = gradient_scale * gradient, t = state->step, b = 1 - t^decay_rate and q = g*g + epsilon:
//   a matrix: row = b*row + (1 - b)*(mean of q over the row), column likewise,
//             u = g / sqrt(row / (mean of all row) * column);
//   a vector: v = b*v + (1 - b)*q, u = g / sqrt(v);
//   p *= 1 - lr*weight_decay; p -= lr / max(1, rms(u) / clip_threshold) * u.
// Means, and rms(u) = sqrt(mean of u*u), are of the whole parameter. A tensor of more dimensions
// consists of matrices in its last two. AdamWArgs have: for a matrix, first_moment
// [place.all_rows()] and second_moment [place.all_columns()], of the whole parameter; for a vector,
// first_moment [n] = v. Betas are not read. The update is split in three calls so that ranks with
// parts of a tensor can add up sums in between.
struct AdafactorArgs {
  std::span<const AdamWArgs> tensors;
  std::span<const MatrixPlace> places;  // of each tensor
  // [adafactor_room(place), tensor by tensor] f64. First of a tensor: the sum of u*u. Then, of a
  // matrix, the sums of g*g of all rows and of all columns, and room for the factors of u.
  View sums;
  double decay_rate = -0.8, clip_threshold = 1;
};
// The sums of a tensor, without and with that room.
inline std::int64_t adafactor_added(const MatrixPlace& place) {
  return 1 + place.all_rows() + place.all_columns();
}
inline std::int64_t adafactor_room(const MatrixPlace& place) {
  return adafactor_added(place) + adafactor_added(place) / 2;  // factors are f32
}

// Starts an update on the device, with unscale = state->unscale / state->loss_scale and
// norm = sqrt(sum_of_squares) * unscale. A norm that is not finite sets state->skip. Otherwise
// skip = 0, ++state->step, and as in torch's clip_grad_norm_
//   state->gradient_scale = unscale * min(1, max_norm / (norm + 1e-6)).
// Then the loss scale is adjusted by `scaling`.
struct BeginUpdateArgs {
  ConstView sum_of_squares;  // [1] f64, over all gradients
  double max_norm = 0;       // 0: no clipping
  View norm;                 // [1] f64, output
  StepState* state = nullptr;
  LossScaleRule scaling = {};
};

class OptimizerKernels {
 public:
  virtual ~OptimizerKernels() = default;
  // Sets the numbers of the next queued step. Must be called outside of graph capture.
  virtual void set_step(StepState* state, const StepNumbers& numbers, Stream stream);
  virtual void begin_update(const BeginUpdateArgs& args, Stream stream);
  // Same as one adamw() per element of `args`, in as few launches as the device allows. `args`
  // share beta1, beta2, epsilon, state and whether they have masters.
  virtual void adamw_many(std::span<const AdamWArgs> args, Stream stream);
  // One Lion update per element of `args`, which share what adamw_many() requires.
  virtual void lion_many(std::span<const AdamWArgs> args, Stream stream) = 0;
  // out[0] (f64) = sum of squares over all of `xs`, added in order.
  virtual void sum_of_squares_many(std::span<const ConstView> xs, View out, Stream stream);

  virtual void adamw(const AdamWArgs& args, Stream stream) = 0;
  virtual void sgd(const SgdArgs& args, Stream stream) = 0;
  // Advances the moments and writes `squares`. If the step is skipped, `squares` has no meaning.
  virtual void lamb_moments(const LambArgs& args, Stream stream) = 0;
  // Reads `squares`, recomputes r from the moments (same bits; r is never stored) and updates. Does
  // not read gradients.
  virtual void lamb_apply(const LambArgs& args, Stream stream) = 0;

  // Writes the sums of g*g of this part's rows and columns, 0 in rows and columns of other parts.
  virtual void adafactor_sums(const AdafactorArgs& args, Stream stream) = 0;
  // Reads these sums, advances the states and writes the sum of u*u of this part.
  virtual void adafactor_moments(const AdafactorArgs& args, Stream stream) = 0;
  // Reads that sum and updates. `sums` must be untouched since adafactor_moments(), except for it.
  virtual void adafactor_apply(const AdafactorArgs& args, Stream stream) = 0;

  // out[0] (f64) (+)= sum of squares of x (f32, bf16, f16), summed in f64. The order is fixed: the
  // result does not depend on the number of threads.
  virtual void sum_of_squares(ConstView x, View out, bool accumulate, Stream stream) = 0;
  // True if any element of x (f32, bf16, f16) is inf or NaN. Blocks the host for the answer.
  virtual bool has_non_finite(ConstView x, Stream stream) = 0;
};

}  // namespace shoal::kernels
