// SIMD loops of NormKernels, over rows [first, first + rows) on the calling thread.
#pragma once

#include "shoal/kernels/cpu/random_bits.h"
#include "shoal/kernels/norm.h"

namespace shoal::kernels {

// `plan`: null unless args.residual is defined and its dropout is not 0.
void layer_norm_rows(const LayerNormArgs& args, const DropoutPlan* plan, std::int64_t first,
                     std::int64_t rows);
// `plan`: that of args.dropout if args.dx_branch is defined, else null.
void layer_norm_backward_rows(const LayerNormBackwardArgs& args, const DropoutPlan* plan,
                              std::int64_t first, std::int64_t rows);
// sums [2, C] = these rows' part of dgamma, then of dbeta. mean: null for RMSNorm.
void layer_norm_weight_rows(const ConstView& dy, const ConstView& x, const float* mean,
                            const float* rstd, std::int64_t first, std::int64_t rows, float* sums);
void softmax_rows(const ConstView& x, const View& y, std::int64_t first, std::int64_t rows);
void softmax_backward_rows(const ConstView& y, const ConstView& dy, const View& dx,
                           std::int64_t first, std::int64_t rows);

}  // namespace shoal::kernels
