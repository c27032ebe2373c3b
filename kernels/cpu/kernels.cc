#include "shoal/kernels/kernels.h"

#include <oneapi/dnnl/dnnl.hpp>

#include "shoal/kernels/cpu/families.h"
#include "shoal/kernels/cpu/instruction_set.h"
#include "shoal/kernels/cpu/onednn.h"
#include "shoal/kernels/emulation.h"
#include "shoal/runtime/base/error.h"
#include "shoal/runtime/base/log.h"
#include "shoal/runtime/base/parallel_for.h"

namespace shoal::kernels {
namespace {

// Families are created on first use, so an unused table costs nothing.
class CpuKernels final : public Kernels, public Emulates {
 public:
  explicit CpuKernels(const CpuKernelOptions& options) {
    limit_instruction_set();
    SHOAL_CHECK(options.threads >= 0, "{} kernel threads; 0 means the available cores",
                options.threads);
    resources_.threads = options.threads > 0 ? options.threads : available_cores();
    if (resources_.threads > 1 && threads_spin_long())
      log::once(log::Level::info, "openmp spins",
                "OpenMP's threads spin long between kernels, which slows whatever else runs here: "
                "call restart_with_short_spins(argv) first in main, or set GOMP_SPINCOUNT=10000");
    if (!options.memory) own_memory_ = make_host_memory();
    resources_.memory = options.memory ? options.memory : own_memory_.get();
  }

  MatmulKernels& matmul() override {
    if (!matmul_) matmul_ = make_cpu_matmul(resources_, elementwise());
    return *matmul_;
  }
  ElementwiseKernels& elementwise() override {
    if (!elementwise_) elementwise_ = make_cpu_elementwise(resources_);
    return *elementwise_;
  }
  NormKernels& norm() override {
    if (!norm_) norm_ = make_cpu_norm(resources_);
    return *norm_;
  }
  AttentionKernels& attention() override {
    if (!attention_) attention_ = make_cpu_attention(resources_);
    return *attention_;
  }
  LossKernels& loss() override {
    if (!loss_) loss_ = make_cpu_loss(resources_, elementwise());
    return *loss_;
  }
  EmbeddingKernels& embedding() override {
    if (!embedding_) embedding_ = make_cpu_embedding(resources_);
    return *embedding_;
  }
  OptimizerKernels& optimizer() override {
    if (!optimizer_) optimizer_ = make_cpu_optimizer(resources_);
    return *optimizer_;
  }
  ReductionKernels& reduction() override {
    if (!reduction_) reduction_ = make_cpu_reduction();
    return *reduction_;
  }
  Device device() const override { return Device::cpu(); }
  std::string describe() const override {
    const dnnl_version_t* version = dnnl_version();
    OneDnnGemm gemm(resources_, 2);
    return fmt::format("{} (bf16 products {}), oneDNN {}.{}.{}, {} thread{}", instruction_set(),
                       gemm.implementation(DType::bf16), version->major, version->minor,
                       version->patch, resources_.threads, resources_.threads == 1 ? "" : "s");
  }
  std::string emulates(DType dtype) const override {
    return dtype == DType::bf16 ? bf16_emulation() : std::string();
  }

 private:
  std::unique_ptr<MemoryResource> own_memory_;
  CpuResources resources_;
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

std::unique_ptr<Kernels> make_cpu_kernels(const CpuKernelOptions& options) {
  return std::make_unique<CpuKernels>(options);
}

}  // namespace shoal::kernels
