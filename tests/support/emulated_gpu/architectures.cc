// The architectures of the emulated binary's device code: all that Shoal can be compiled for,
// unless SHOAL_EMULATED_GPU_ARCHITECTURES names others.
#include <cstdlib>

#include "shoal/kernels/kernels.h"

namespace shoal::kernels {

std::string cuda_architectures() {
  const char* const chosen = std::getenv("SHOAL_EMULATED_GPU_ARCHITECTURES");
  return chosen != nullptr ? chosen : "70-real 80-real 90a-real";
}

}  // namespace shoal::kernels
