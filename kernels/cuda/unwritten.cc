// Stands in for the families whose sources are not in this folder yet, so that programs link.
// CMakeLists.txt defines SHOAL_UNWRITTEN_<family> for each; remove this file with the last of them.
#include "shoal/kernels/cuda/families.h"
#include "shoal/runtime/base/error.h"

namespace shoal::kernels {
namespace {
[[noreturn, maybe_unused]] void unwritten(const char* family) {
  throw_error(ErrorCode::unavailable, "there are no CUDA kernels for {} yet", family);
}
}  // namespace

#ifdef SHOAL_UNWRITTEN_matmul
std::unique_ptr<MatmulKernels> make_cuda_matmul(CudaRoom&, CudaGemm&) {
  unwritten("matrix products");
}
std::unique_ptr<CudaGemm> make_cuda_gemm(CudaRoom&, const std::string&) {
  unwritten("matrix products");
}
#endif
#ifdef SHOAL_UNWRITTEN_norm
std::unique_ptr<NormKernels> make_cuda_norm(CudaRoom&) { unwritten("norms"); }
#endif
#ifdef SHOAL_UNWRITTEN_attention
std::unique_ptr<AttentionKernels> make_cuda_attention(CudaRoom&) { unwritten("attention"); }
#endif
#ifdef SHOAL_UNWRITTEN_loss
std::unique_ptr<LossKernels> make_cuda_loss(CudaRoom&, CudaGemm&) { unwritten("losses"); }
#endif
#ifdef SHOAL_UNWRITTEN_optimizer
std::unique_ptr<OptimizerKernels> make_cuda_optimizer(CudaRoom&) { unwritten("optimizers"); }
#endif

}  // namespace shoal::kernels
