#include "shoal/kernels/kernels.h"

#include "shoal/kernels/reference/families.h"

namespace shoal::kernels {
namespace {

// Creates its family on first use.
template <typename Family, std::unique_ptr<Family> (*make)()>
class Lazy {
 public:
  Family& get() {
    if (!family_) family_ = make();
    return *family_;
  }

 private:
  std::unique_ptr<Family> family_;
};

class ReferenceKernels final : public Kernels {
 public:
  MatmulKernels& matmul() override { return matmul_.get(); }
  ElementwiseKernels& elementwise() override { return elementwise_.get(); }
  NormKernels& norm() override { return norm_.get(); }
  AttentionKernels& attention() override { return attention_.get(); }
  LossKernels& loss() override { return loss_.get(); }
  EmbeddingKernels& embedding() override { return embedding_.get(); }
  OptimizerKernels& optimizer() override { return optimizer_.get(); }
  ReductionKernels& reduction() override { return reduction_.get(); }
  Device device() const override { return Device::cpu(); }
  std::string describe() const override { return "reference, double precision, 1 thread"; }

 private:
  Lazy<MatmulKernels, make_reference_matmul> matmul_;
  Lazy<ElementwiseKernels, make_reference_elementwise> elementwise_;
  Lazy<NormKernels, make_reference_norm> norm_;
  Lazy<AttentionKernels, make_reference_attention> attention_;
  Lazy<LossKernels, make_reference_loss> loss_;
  Lazy<EmbeddingKernels, make_reference_embedding> embedding_;
  Lazy<OptimizerKernels, make_reference_optimizer> optimizer_;
  Lazy<ReductionKernels, make_reference_reduction> reduction_;
};

}  // namespace

std::unique_ptr<Kernels> make_reference_kernels() { return std::make_unique<ReferenceKernels>(); }

}  // namespace shoal::kernels
