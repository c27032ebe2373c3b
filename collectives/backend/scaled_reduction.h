// Sums of scaled elements: premultiplied_sum, and avg of 16-bit floats, whose sum may overflow
// where their mean does not.
#pragma once

#include <span>

#include "shoal/kernels/reduction.h"

namespace shoal::collectives {

// destination[i] = factor * sum over s, in order, of factors[s] * sources[s][i]; 16-bit floats
// through f32, rounded once. Empty `factors`: all 1. Floating dtypes; factors are rounded to the
// type of the sum. destination may be one of the sources. No alignment is assumed.
void reduce_scaled(kernels::ReductionKernels& reduction, DType dtype,
                   std::span<const void* const> sources, std::span<const double> factors,
                   double factor, void* destination, std::int64_t count);

// destination[i] = factor * source[i], rounded once.
void scale_into(kernels::ReductionKernels& reduction, DType dtype, const void* source,
                double factor, void* destination, std::int64_t count);

}  // namespace shoal::collectives
