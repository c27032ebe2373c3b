// Families that have not landed yet: asking for one says so. Delete each line with its family.
#include "shoal/kernels/reference/families.h"
#include "shoal/runtime/base/error.h"

namespace shoal::kernels {
namespace {
[[noreturn]] void pending(const char* family) {
  throw_error(ErrorCode::unavailable, "the reference kernels for {} are not in this build", family);
}
}  // namespace

std::unique_ptr<ElementwiseKernels> make_reference_elementwise() { pending("elementwise"); }
std::unique_ptr<NormKernels> make_reference_norm() { pending("norm"); }
std::unique_ptr<EmbeddingKernels> make_reference_embedding() { pending("embedding"); }
std::unique_ptr<OptimizerKernels> make_reference_optimizer() { pending("optimizer"); }
std::unique_ptr<ReductionKernels> make_reference_reduction() { pending("reduction"); }

}  // namespace shoal::kernels
