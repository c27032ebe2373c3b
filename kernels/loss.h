// Cross-entropy of a linear head, in slices: [tokens, vocabulary] logits never exist whole.
#pragma once

#include "shoal/runtime/tensor/tensor.h"

namespace shoal::kernels {

struct LinearCrossEntropyArgs {
  ConstView x;        // [N, C] hidden states, f32/bf16/f16
  ConstView weight;   // [V, C], same dtype
  ConstView bias;     // optional [V]
  ConstView targets;  // [N] i32; negative: not a target (Hugging Face's -100)
  float label_smoothing = 0;
  float loss_scale = 1;  // gradients are those of loss_scale * sum of losses
  View loss_sum;         // [1] f32: sum of the losses of valid targets; overwritten
  View token_loss;       // optional [N] f32; 0 where there is no target
  View correct;          // optional [1] i32: targets that were the largest logit
  // Backward in the same pass; undefined: not wanted.
  View dx;                          // [N, C]
  View dweight;                     // [V, C] f32, accumulated into when accumulate_dweight
  View dbias;                       // [V] f32
  bool accumulate_dweight = false;  // dbias too
};

class LossKernels {
 public:
  virtual ~LossKernels() = default;

  // Loss, and the gradients that are asked for, slice of rows by slice of rows: the peak is one
  // slice of logits. A target >= V throws invalid_argument with its row and value.
  virtual void linear_cross_entropy(const LinearCrossEntropyArgs& args, Stream stream) = 0;

  // The same from logits that exist ([N, V], small heads): dlogits optional, of the logits' dtype
  // or f32; may be the logits themselves.
  virtual void cross_entropy(ConstView logits, ConstView targets, float label_smoothing,
                             float loss_scale, View loss_sum, View dlogits, Stream stream) = 0;
};

}  // namespace shoal::kernels
