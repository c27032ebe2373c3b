// Reductions over ranks by the canonical tree (algorithm/canonical_tree.h), for fixed order and for
// what kernels do not offer: premultiplied_sum, and avg of 16-bit floats, whose sum may overflow
// where their mean does not.
#pragma once

#include <memory>
#include <span>

#include "shoal/kernels/reduction.h"

namespace shoal::collectives {

// destination[i] = factor * the reduction, by the canonical tree over s, of factors[s] *
// sources[s][i]; 16-bit floats in f32 throughout, rounded once. Empty `factors`: all 1. Factors,
// for floating dtypes only, are rounded to the accumulation type. destination may be one of the
// sources. No alignment is assumed. Works tile by tile in the first-level cache.
void reduce_in_tree(kernels::ReductionKernels& reduction, kernels::Reduce operation, DType dtype,
                    std::span<const void* const> sources, std::span<const double> factors,
                    double factor, void* destination, std::int64_t count);

// destination[i] = factor * source[i], rounded once.
void scale_into(kernels::ReductionKernels& reduction, DType dtype, const void* source,
                double factor, void* destination, std::int64_t count);

// The CPU's kernels; with `fixed_order` their reductions of floats follow the canonical tree. (Of
// up to three sources that is the left fold; of integers any order gives the same.)
std::unique_ptr<kernels::ReductionKernels> make_rank_reduction(bool fixed_order);

}  // namespace shoal::collectives
