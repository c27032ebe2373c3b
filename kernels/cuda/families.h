// Factories of the CUDA kernel families, one source file each.
#pragma once

#include "shoal/kernels/cuda/gemm.h"
#include "shoal/kernels/cuda/resources.h"
#include "shoal/kernels/kernels.h"

namespace shoal::kernels {

// `resources` and `gemm` must outlive the families.
std::unique_ptr<MatmulKernels> make_cuda_matmul(CudaResources& resources, CudaGemm& gemm);
std::unique_ptr<ElementwiseKernels> make_cuda_elementwise(CudaResources& resources);
std::unique_ptr<NormKernels> make_cuda_norm(CudaResources& resources);
std::unique_ptr<AttentionKernels> make_cuda_attention(CudaResources& resources, CudaGemm& gemm);
std::unique_ptr<LossKernels> make_cuda_loss(CudaResources& resources, CudaGemm& gemm);
std::unique_ptr<EmbeddingKernels> make_cuda_embedding(CudaResources& resources);
std::unique_ptr<OptimizerKernels> make_cuda_optimizer(CudaResources& resources);
std::unique_ptr<ReductionKernels> make_cuda_reduction(CudaResources& resources);

}  // namespace shoal::kernels
