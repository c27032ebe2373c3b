// The reduction that a rank does on its own, and the conversions of partial sums.
#pragma once

#include <memory>

#include "shoal/kernels/reduction.h"

namespace shoal::collectives {

// Portable loops; serves one thread at a time.
std::unique_ptr<kernels::ReductionKernels> make_local_reduction();

// Elements between a 16-bit float and f32, for partial sums that travel as f32.
void widen(DType dtype, const void* source, float* destination, std::int64_t count);
void narrow(DType dtype, const float* source, void* destination, std::int64_t count);

}  // namespace shoal::collectives
