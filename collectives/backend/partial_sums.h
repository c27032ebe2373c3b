// Conversions of partial sums that travel between ranks.
#pragma once

#include <cstdint>

#include "shoal/runtime/tensor/dtype.h"

namespace shoal::collectives {

// Convert between a 16-bit float and f32. Only the `float` pointer must be aligned.
void widen(DType dtype, const void* source, float* destination, std::int64_t count);
void narrow(DType dtype, const float* source, void* destination, std::int64_t count);

}  // namespace shoal::collectives
