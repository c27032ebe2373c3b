#include "shoal/kernels/kernels.h"

#include <cublasLt.h>

#include "shoal/kernels/cuda/attention_cudnn.h"
#include "shoal/kernels/cuda/families.h"
#include "shoal/kernels/emulation.h"
#include "shoal/runtime/base/error.h"

namespace shoal::kernels {
namespace {

// Families are created on first use.
class CudaKernels final : public Kernels, public Emulates {
 public:
  explicit CudaKernels(const CudaKernelOptions& options)
      : options_(options), resources_(options.device, options.memory) {}

  MatmulKernels& matmul() override {
    if (!matmul_) matmul_ = make_cuda_matmul(resources_, gemm());
    return *matmul_;
  }
  ElementwiseKernels& elementwise() override {
    if (!elementwise_) elementwise_ = make_cuda_elementwise(resources_);
    return *elementwise_;
  }
  NormKernels& norm() override {
    if (!norm_) norm_ = make_cuda_norm(resources_);
    return *norm_;
  }
  AttentionKernels& attention() override {
    if (!attention_) attention_ = make_cuda_attention(resources_, gemm());
    return *attention_;
  }
  LossKernels& loss() override {
    if (!loss_) loss_ = make_cuda_loss(resources_, gemm());
    return *loss_;
  }
  EmbeddingKernels& embedding() override {
    if (!embedding_) embedding_ = make_cuda_embedding(resources_);
    return *embedding_;
  }
  OptimizerKernels& optimizer() override {
    if (!optimizer_) optimizer_ = make_cuda_optimizer(resources_);
    return *optimizer_;
  }
  ReductionKernels& reduction() override {
    if (!reduction_) reduction_ = make_cuda_reduction(resources_);
    return *reduction_;
  }
  Device device() const override { return resources_.device(); }
  Stream stream() const override { return resources_.stream(); }
  std::string describe() const override {
    const std::size_t cublas = cublasLtGetVersion();
    return fmt::format("{}, cuBLASLt {}.{}.{}, {}",
                       device_backend(DeviceType::cuda).describe(resources_.device()),
                       cublas / 10000, cublas / 100 % 100, cublas % 100, cudnn_version());
  }
  void check_computes(DType dtype) const override {
    const int capability = resources_.capability();
    if (dtype != DType::bf16 || capability >= 80) return;
    throw Error(ErrorCode::unavailable,
                fmt::format("bf16 needs compute capability 8.0, and {} has {}.{}",
                            to_string(resources_.device()), capability / 10, capability % 10),
                "train in f16 with --fp16 true, or in f32");
  }
  std::string emulates(DType dtype) const override {
    const int capability = resources_.capability();
    if (dtype != DType::bf16 || capability >= 80) return {};
    return fmt::format("{} has compute capability {}.{}, and bf16 needs 8.0",
                       to_string(resources_.device()), capability / 10, capability % 10);
  }

 private:
  CudaGemm& gemm() {
    if (!gemm_) gemm_ = make_cuda_gemm(resources_, options_.cache_directory);
    return *gemm_;
  }

  CudaKernelOptions options_;
  CudaResources resources_;
  std::unique_ptr<CudaGemm> gemm_;
  std::unique_ptr<ElementwiseKernels> elementwise_;
  std::unique_ptr<MatmulKernels> matmul_;
  std::unique_ptr<NormKernels> norm_;
  std::unique_ptr<AttentionKernels> attention_;
  std::unique_ptr<LossKernels> loss_;
  std::unique_ptr<EmbeddingKernels> embedding_;
  std::unique_ptr<OptimizerKernels> optimizer_;
  std::unique_ptr<ReductionKernels> reduction_;
};

}  // namespace

std::unique_ptr<Kernels> make_cuda_kernels(const CudaKernelOptions& options) {
  return std::make_unique<CudaKernels>(options);
}

}  // namespace shoal::kernels
