// Factories of the CUDA kernel families, one source file each.
#pragma once

#include "shoal/kernels/cuda/gemm.h"
#include "shoal/kernels/cuda/room.h"
#include "shoal/kernels/kernels.h"

namespace shoal::kernels {

// `room` and `gemm` must outlive the families.
std::unique_ptr<MatmulKernels> make_cuda_matmul(CudaRoom& room, CudaGemm& gemm);
std::unique_ptr<ElementwiseKernels> make_cuda_elementwise(CudaRoom& room);
std::unique_ptr<NormKernels> make_cuda_norm(CudaRoom& room);
std::unique_ptr<AttentionKernels> make_cuda_attention(CudaRoom& room, CudaGemm& gemm);
std::unique_ptr<LossKernels> make_cuda_loss(CudaRoom& room, CudaGemm& gemm);
std::unique_ptr<EmbeddingKernels> make_cuda_embedding(CudaRoom& room);
std::unique_ptr<OptimizerKernels> make_cuda_optimizer(CudaRoom& room);
std::unique_ptr<ReductionKernels> make_cuda_reduction(CudaRoom& room);

}  // namespace shoal::kernels
