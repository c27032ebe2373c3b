// Factories of the reference kernel families, one source file each.
#pragma once

#include "shoal/kernels/kernels.h"

namespace shoal::kernels {

std::unique_ptr<MatmulKernels> make_reference_matmul();
std::unique_ptr<ElementwiseKernels> make_reference_elementwise();
std::unique_ptr<NormKernels> make_reference_norm();
std::unique_ptr<AttentionKernels> make_reference_attention();
std::unique_ptr<LossKernels> make_reference_loss();
std::unique_ptr<EmbeddingKernels> make_reference_embedding();
std::unique_ptr<OptimizerKernels> make_reference_optimizer();
std::unique_ptr<ReductionKernels> make_reference_reduction();

}  // namespace shoal::kernels
