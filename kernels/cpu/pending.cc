// Families that have not landed yet: asking for one says so. Delete each line with its family.
#include "shoal/kernels/cpu/families.h"
#include "shoal/runtime/base/error.h"

namespace shoal::kernels {
namespace {
[[noreturn]] void pending(const char* family) {
  throw_error(ErrorCode::unavailable, "the cpu kernels for {} are not in this build", family);
}
}  // namespace

std::unique_ptr<ElementwiseKernels> make_cpu_elementwise(const CpuRoom&) { pending("elementwise"); }
std::unique_ptr<NormKernels> make_cpu_norm(const CpuRoom&) { pending("norm"); }
std::unique_ptr<EmbeddingKernels> make_cpu_embedding(const CpuRoom&) { pending("embedding"); }
std::unique_ptr<OptimizerKernels> make_cpu_optimizer(const CpuRoom&) { pending("optimizer"); }
std::unique_ptr<ReductionKernels> make_cpu_reduction(const CpuRoom&) { pending("reduction"); }

}  // namespace shoal::kernels
