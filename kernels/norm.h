// LayerNorm (Ba et al., 2016), RMSNorm (Zhang & Sennrich, 2019) and row-wise softmax.
//
// RMSNorm is a LayerNorm with mean 0 and no beta. It is selected by an undefined `beta` in forward,
// an undefined `mean` in backward, and both undefined in the weight gradient.
#pragma once

#include "shoal/kernels/elementwise.h"

namespace shoal::kernels {

struct LayerNormArgs {
  ConstView x;             // [rows, C]
  ConstView gamma;         // [C], f32 or x's dtype
  ConstView beta;          // [C]; undefined: RMSNorm
  float gamma_offset = 0;  // added to gamma
  float epsilon = 1e-5f;
  View y;     // [rows, C], x's dtype
  View mean;  // [rows] f32 for backward; undefined in inference and for RMSNorm
  View rstd;  // [rows] f32 for backward; undefined in inference
  // Fused end of a sub-layer: if `residual` is defined, x is first replaced by the sum
  // residual + dropout(x), which is written to `sum` [rows, C].
  ConstView residual;
  View sum;
  DropoutArgs dropout;
};

struct LayerNormBackwardArgs {
  ConstView dy;  // [rows, C]
  ConstView x;   // input of the normalisation ([rows, C]; `sum` in the fused form)
  ConstView gamma, mean, rstd;
  float gamma_offset = 0;
  View dx;                // [rows, C]; undefined: not wanted
  ConstView dx_residual;  // optional [rows, C], added to dx (the gradient that skips the norm)
  // Optional [rows, C]: dropout applied to the stored dx. It is the gradient of the branch if x was
  // residual + dropout(branch). Requires dx and must not alias it.
  View dx_branch;
  DropoutArgs dropout;
  // Optional [C] f32 (RMSNorm: only dgamma), requires dx. Same values as
  // layer_norm_weight_gradient(), computed while dy and x are read anyway.
  View dgamma, dbeta;
  bool accumulate = false;  // applies to dgamma and dbeta
};

class NormKernels {
 public:
  virtual ~NormKernels() = default;
  virtual void layer_norm(const LayerNormArgs& args, Stream stream) = 0;
  virtual void layer_norm_backward(const LayerNormBackwardArgs& args, Stream stream) = 0;
  // dgamma, dbeta [C] f32 (+)= their gradients, without dx. RMSNorm: mean and dbeta are undefined.
  // On a GPU, layer_norm_backward() adds these sums in a different order.
  virtual void layer_norm_weight_gradient(ConstView dy, ConstView x, ConstView mean, ConstView rstd,
                                          View dgamma, View dbeta, bool accumulate,
                                          Stream stream) = 0;

  // y = softmax(x) over the last dimension, and dx = y * (dy - sum(dy * y)).
  virtual void softmax(ConstView x, View y, Stream stream) = 0;
  virtual void softmax_backward(ConstView y, ConstView dy, View dx, Stream stream) = 0;
};

}  // namespace shoal::kernels
