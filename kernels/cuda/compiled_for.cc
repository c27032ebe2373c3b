// Architectures that CMake compiled these kernels for.
#include "shoal/kernels/kernels.h"

namespace shoal::kernels {

std::string cuda_architectures() { return SHOAL_CUDA_ARCHITECTURES; }

}  // namespace shoal::kernels
