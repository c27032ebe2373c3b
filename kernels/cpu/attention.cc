#include "shoal/kernels/cpu/families.h"
#include "shoal/kernels/reference/families.h"

namespace shoal::kernels {

// Until the tiled kernels land.
std::unique_ptr<AttentionKernels> make_cpu_attention(const CpuRoom&) {
  return make_reference_attention();
}

}  // namespace shoal::kernels
