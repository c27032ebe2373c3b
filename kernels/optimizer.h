// Update rules over flat buffers, norms, clipping. All sizes in elements; all f32 unless said.
#pragma once

#include <optional>
#include <span>

#include "shoal/kernels/loss_scale.h"
#include "shoal/kernels/random.h"
#include "shoal/kernels/rounding.h"
#include "shoal/kernels/step_numbers.h"
#include "shoal/runtime/device/device.h"
#include "shoal/runtime/tensor/tensor.h"

namespace shoal::kernels {

// AdamW (Loshchilov & Hutter, 2019) as torch.optim.AdamW computes it: with g = gradient_scale *
// gradient and t = state->step (the number of this update, from 1: whoever owns the state advances
// it once a step, before the first update),
//   p *= 1 - lr*weight_decay; m += (1 - beta1)*(g - m); v = beta2*v + (1 - beta2)*g*g;
//   p -= lr/(1 - beta1^t) * m / (sqrt(v)/sqrt(1 - beta2^t) + epsilon).
// Factors are computed in f64 and applied in f32. state->skip leaves every buffer as it is.
struct AdamWArgs {
  View master;         // [n] f32, or where `rounding` is given the bf16 parameter itself
  View first_moment;   // [n] f32
  View second_moment;  // [n] f32
  ConstView gradient;  // [n] f32
  View parameter;      // [n] bf16/f16 copy to refresh; undefined: the master is the parameter
  // Without masters: p is widened, updated in f32 as above and rounded stochastically.
  std::optional<RoundingPlace> rounding = {};
  double beta1 = 0.9, beta2 = 0.999, epsilon = 1e-8, weight_decay = 0;
  const StepState* state = nullptr;  // never null; read when the update runs
};

// torch.optim.SGD: g += weight_decay*p; at the first update (state->step == 1) buf = g, later
// buf = momentum*buf + (1 - dampening)*g; p -= lr * (nesterov ? g + momentum*buf : buf).
struct SgdArgs {
  View master, momentum_buffer;  // momentum_buffer undefined where momentum is 0
  ConstView gradient;
  View parameter;
  double momentum = 0, dampening = 0, weight_decay = 0;
  bool nesterov = false;
  const StepState* state = nullptr;
};

// LAMB (You et al., 2020), of tensors that share what adamw_many's do: with m and v as
// AdamW's, r = m̂ / (sqrt(v̂) + epsilon) + weight_decay*p, and p -= lr * trust * r, where trust =
// min(|p| / |r|, max_trust_ratio), 1 where either norm is 0. In two calls, so that who has parts of
// tensors may add up their sums of squares between them.
struct LambArgs {
  std::span<const AdamWArgs> tensors;
  View squares;  // [tensors, 2] f64: sums of squares of p and of r
  double max_trust_ratio = 10;
};

// The beginning of an update, decided where the numbers are: with unscale = state->unscale /
// state->loss_scale and norm = sqrt(sum_of_squares) * unscale, a norm that is not finite sets
// state->skip; otherwise skip = 0, state->gradient_scale = unscale * min(1, max_norm / (norm +
// 1e-6)) (torch's clip_grad_norm_), and ++state->step. Then the loss scale follows `scaling`.
struct BeginUpdateArgs {
  ConstView sum_of_squares;  // [1] f64, of all gradients
  double max_norm = 0;       // 0: no clipping
  View norm;                 // [1] f64, written
  StepState* state = nullptr;
  LossScaleRule scaling = {};
};

class OptimizerKernels {
 public:
  virtual ~OptimizerKernels() = default;
  // `numbers` of the step that is queued next; outside of what is captured.
  virtual void set_step(StepState* state, const StepNumbers& numbers, Stream stream);
  virtual void begin_update(const BeginUpdateArgs& args, Stream stream);
  // As one call for each, in as few launches as the device allows: `args` share beta1, beta2,
  // epsilon, state and whether they have masters.
  virtual void adamw_many(std::span<const AdamWArgs> args, Stream stream);
  // out[0] (f64) = sum of squares of all of `xs`, in their order.
  virtual void sum_of_squares_many(std::span<const ConstView> xs, View out, Stream stream);

  virtual void adamw(const AdamWArgs& args, Stream stream) = 0;
  virtual void sgd(const SgdArgs& args, Stream stream) = 0;
  // Advances moments and writes `squares`; of a step that is left out they say nothing.
  virtual void lamb_moments(const LambArgs& args, Stream stream) = 0;
  // Reads `squares`, makes r of the moments once more (of the same bits: r is never in memory) and
  // updates. Gradients are not read.
  virtual void lamb_apply(const LambArgs& args, Stream stream) = 0;

  // out[0] (f64) (+)= sum of squares of x (f32, bf16, f16), summed in f64. Fixed order: the result
  // does not depend on threads.
  virtual void sum_of_squares(ConstView x, View out, bool accumulate, Stream stream) = 0;
  // Whether any element of x (f32, bf16, f16) is inf or NaN. Blocks: the host needs the answer.
  virtual bool has_non_finite(ConstView x, Stream stream) = 0;
};

}  // namespace shoal::kernels
