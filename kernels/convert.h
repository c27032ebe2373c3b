// Elementwise conversion between any two dtypes; defines ElementwiseKernels::cast.
#pragma once

#include <cstdint>

#include "shoal/runtime/tensor/dtype.h"

namespace shoal::kernels {

// out[i] = x[i] converted. To bf16 or f16: through f32, rounding to nearest even. Float to integer:
// rounds toward zero and saturates; NaN gives 0. Integer to narrower integer: wraps. Both buffers
// must be aligned to their dtype (unlike those of ReductionKernels).
void convert_elements(DType from, const void* x, DType to, void* out, std::int64_t count);

}  // namespace shoal::kernels
