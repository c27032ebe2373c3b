// Reductions over ranks by the canonical tree (algorithm/canonical_tree.h). Used for fixed order
// and for reductions that kernels lack: premultiplied_sum, and avg of 16-bit floats, whose sum may
// overflow although their mean does not.
#pragma once

#include <memory>
#include <span>

#include "shoal/collectives/transport/operation.h"
#include "shoal/kernels/reduction.h"

namespace shoal::collectives {

// destination[i] = factor * the canonical-tree reduction over s of factors[s] * sources[s][i].
// 16-bit floats are computed in f32 and rounded once. Empty `factors`: all 1. Factors are for
// floating dtypes only and are rounded to the accumulation type.
//
// destination may be one of the sources. No alignment is assumed. Works tile by tile in the L1
// cache.
void reduce_in_tree(kernels::ReductionKernels& reduction, kernels::Reduce operation, DType dtype,
                    std::span<const void* const> sources, std::span<const double> factors,
                    double factor, void* destination, std::int64_t count);

// destination[i] = factor * source[i], rounded once.
void scale_into(kernels::ReductionKernels& reduction, DType dtype, const void* source,
                double factor, void* destination, std::int64_t count);

// The CPU kernels. With `fixed_order`, float reductions follow the canonical tree. (Up to three
// sources, that tree is the left fold; the order does not matter for integers.)
std::unique_ptr<kernels::ReductionKernels> make_rank_reduction(bool fixed_order);

}  // namespace shoal::collectives
