#include "shoal/runtime/device/cuda_driver.h"

#include <cuda_runtime_api.h>

namespace shoal {

void* cuda_driver_function(const char* name) noexcept {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found{};
  constexpr unsigned long long kDefault = 0;
#if CUDART_VERSION >= 12050
  const cudaError_t status =
      cudaGetDriverEntryPointByVersion(name, &function, 12000, kDefault, &found);
#else
  const cudaError_t status = cudaGetDriverEntryPoint(name, &function, kDefault, &found);
#endif
  (void)cudaGetLastError();
  return status == cudaSuccess && found == cudaDriverEntryPointSuccess ? function : nullptr;
}

}  // namespace shoal
