// Factories of the CPU kernel families, one source file each.
#pragma once

#include "shoal/kernels/kernels.h"

namespace shoal::kernels {

// Resources shared by all families. `memory` is never null and must outlive the family.
struct CpuResources {
  int threads = 1;
  MemoryResource* memory = nullptr;
};

// `elementwise` (activations, f16 conversion) must outlive the result.
std::unique_ptr<MatmulKernels> make_cpu_matmul(const CpuResources& resources,
                                               ElementwiseKernels& elementwise);
std::unique_ptr<ElementwiseKernels> make_cpu_elementwise(const CpuResources& resources);
std::unique_ptr<NormKernels> make_cpu_norm(const CpuResources& resources);
// `bf16_pairs`: multiply pairs of bf16 if the machine can. Otherwise bf16 is computed in f32.
std::unique_ptr<AttentionKernels> make_cpu_attention(const CpuResources& resources,
                                                     bool bf16_pairs = true);
// `elementwise` (f16 conversion) must outlive the result. A slice's logits take about
// `slice_bytes`; 0: 128 MiB. Each slice reads and writes all of dweight (154 MB for GPT-2's head)
// and reads the weight twice, so few large slices are fastest.
std::unique_ptr<LossKernels> make_cpu_loss(const CpuResources& resources,
                                           ElementwiseKernels& elementwise,
                                           std::int64_t slice_bytes = 0);
std::unique_ptr<EmbeddingKernels> make_cpu_embedding(const CpuResources& resources);
std::unique_ptr<OptimizerKernels> make_cpu_optimizer(const CpuResources& resources);

}  // namespace shoal::kernels
