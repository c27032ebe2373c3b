// Replaces the CUDA kernels in a build without CUDA.
#include "shoal/kernels/kernels.h"
#include "shoal/runtime/base/error.h"

namespace shoal::kernels {

std::unique_ptr<Kernels> make_cuda_kernels(const CudaKernelOptions&) {
  throw Error(ErrorCode::unavailable, "this build of Shoal has no CUDA kernels",
              "build it with -DSHOAL_CUDA=ON (./dev build cuda)");
}

std::string cuda_architectures() { return {}; }

}  // namespace shoal::kernels
