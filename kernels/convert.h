// Conversion of elements between any two dtypes, one at a time: what ElementwiseKernels::cast
// means.
#pragma once

#include <cstdint>

#include "shoal/runtime/tensor/dtype.h"

namespace shoal::kernels {

// out[i] = x[i] converted. To bf16/f16: to nearest even, by way of f32. Float to integer: toward
// zero, saturating, NaN gives 0. Integer to narrower integer: wraps.
// Both lie as their dtypes want to (a message's elements may not: ReductionKernels).
void convert_elements(DType from, const void* x, DType to, void* out, std::int64_t count);

}  // namespace shoal::kernels
