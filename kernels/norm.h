// LayerNorm (Ba et al., 2016), RMSNorm (Zhang & Sennrich, 2019) and row-wise softmax.
//
// RMSNorm is a LayerNorm whose mean counts as 0 and that has no beta: where `beta` is undefined in
// forward, `mean` in backward, and both in the weights' gradient.
#pragma once

#include "shoal/kernels/elementwise.h"

namespace shoal::kernels {

struct LayerNormArgs {
  ConstView x;      // [rows, C]
  ConstView gamma;  // [C], f32 or x's dtype
  ConstView beta;   // [C]; undefined: RMSNorm
  float epsilon = 1e-5f;
  View y;     // [rows, C], x's dtype
  View mean;  // [rows] f32, kept for backward; undefined in inference, and of RMSNorm
  View rstd;  // [rows] f32, kept for backward; undefined in inference
  // Fused sub-layer end: when `residual` is defined, x is first replaced by
  // sum = residual + dropout(x), which is written to `sum` [rows, C].
  ConstView residual;
  View sum;
  DropoutArgs dropout;
};

struct LayerNormBackwardArgs {
  ConstView dy;  // [rows, C]
  ConstView x;   // what was normalised ([rows, C]; `sum` in the fused form)
  ConstView gamma, mean, rstd;
  View dx;                // [rows, C]; undefined: not wanted
  ConstView dx_residual;  // optional [rows, C], added to dx (the gradient that skips the norm)
  // optional [rows, C]: dropout(dx), of dx as it is stored: the gradient of the branch where x was
  // residual + dropout(branch). Wants dx, and is not dx
  View dx_branch;
  DropoutArgs dropout;
  // optional [C] f32 (of an RMSNorm dgamma alone), with dx: what layer_norm_weight_gradient()
  // gives, where it can be had from the same reading of dy and x
  View dgamma, dbeta;
  bool accumulate = false;  // dgamma, dbeta
};

class NormKernels {
 public:
  virtual ~NormKernels() = default;
  virtual void layer_norm(const LayerNormArgs& args, Stream stream) = 0;
  virtual void layer_norm_backward(const LayerNormBackwardArgs& args, Stream stream) = 0;
  // dgamma, dbeta [C] f32 (+)= ; apart from dx. RMSNorm: mean and dbeta are undefined. On a GPU the
  // sums that layer_norm_backward() gives add in another order.
  virtual void layer_norm_weight_gradient(ConstView dy, ConstView x, ConstView mean, ConstView rstd,
                                          View dgamma, View dbeta, bool accumulate,
                                          Stream stream) = 0;

  // y = softmax(x) over the last dimension, and dx = y * (dy - sum(dy * y)).
  virtual void softmax(ConstView x, View y, Stream stream) = 0;
  virtual void softmax_backward(ConstView y, ConstView dy, View dx, Stream stream) = 0;
};

}  // namespace shoal::kernels
