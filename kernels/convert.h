// Elementwise conversion between any two dtypes; defines ElementwiseKernels::cast.
#pragma once

#include <cstdint>

#include "shoal/runtime/tensor/dtype.h"

namespace shoal::kernels {

// out[i] = x[i] converted. To bf16/f16: to nearest even, by way of f32. Float to integer: toward
// zero, saturating, NaN gives 0. Integer to narrower integer: wraps.
// Both buffers must be aligned to their dtype (unlike those of ReductionKernels).
void convert_elements(DType from, const void* x, DType to, void* out, std::int64_t count);

}  // namespace shoal::kernels
