// Update rules over flat buffers, norms, clipping. All sizes in elements; all f32 unless said.
#pragma once

#include "shoal/kernels/random.h"
#include "shoal/runtime/tensor/tensor.h"

namespace shoal::kernels {

// AdamW (Loshchilov & Hutter, 2019) as torch.optim.AdamW computes it.
struct AdamWArgs {
  View master;         // [n] f32
  View first_moment;   // [n] f32
  View second_moment;  // [n] f32
  ConstView gradient;  // [n] f32
  View parameter;      // [n] bf16/f16 copy to refresh; undefined: the master is the parameter
  float beta1 = 0.9f, beta2 = 0.999f, epsilon = 1e-8f, weight_decay = 0;
  const StepState* state = nullptr;  // state->step counts from 1; learning rate and scale from it
};

struct SgdArgs {                 // torch.optim.SGD
  View master, momentum_buffer;  // momentum_buffer undefined where momentum is 0
  ConstView gradient;
  View parameter;
  float momentum = 0, dampening = 0, weight_decay = 0;
  bool nesterov = false;
  const StepState* state = nullptr;
};

struct LambArgs {  // You et al., 2020: AdamW's direction, scaled by a trust ratio a tensor
  AdamWArgs adam;
  View update;  // [n] f32 scratch
  float max_trust_ratio = 10;
};

class OptimizerKernels {
 public:
  virtual ~OptimizerKernels() = default;
  virtual void adamw(const AdamWArgs& args, Stream stream) = 0;
  virtual void sgd(const SgdArgs& args, Stream stream) = 0;
  virtual void lamb(const LambArgs& args, Stream stream) = 0;  // one tensor a call

  // out[0] (f64) (+)= sum of squares. Fixed order: the result does not depend on threads.
  virtual void sum_of_squares(ConstView x, View out, bool accumulate, Stream stream) = 0;
  // out[0] (u8/i32) = 1 when any element is inf or NaN.
  virtual bool has_non_finite(ConstView x, Stream stream) = 0;
};

}  // namespace shoal::kernels
