// What the emulated binary has code for: everything that Shoal is compiled for anywhere, unless
// SHOAL_EMULATED_GPU_ARCHITECTURES says otherwise.
#include <cstdlib>

#include "shoal/kernels/kernels.h"

namespace shoal::kernels {

std::string cuda_architectures() {
  const char* const chosen = std::getenv("SHOAL_EMULATED_GPU_ARCHITECTURES");
  return chosen != nullptr ? chosen : "70-real 80-real 90a-real";
}

}  // namespace shoal::kernels
