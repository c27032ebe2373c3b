// Checks the status of CUDA runtime calls.
#pragma once

#include <cuda_runtime_api.h>

#include "shoal/runtime/base/error.h"
#include "shoal/runtime/device/device.h"

namespace shoal {

// Throws unless `status` is cudaSuccess: out_of_memory; unavailable if the device does not exist or
// its driver does not match; otherwise `otherwise`. The message contains `call` (the function's
// name, a literal), the device and CUDA's text. Clears CUDA's error, so that the thread's next CUDA
// call does not report it again.
void check_cuda(cudaError_t status, const char* call, Device device,
                ErrorCode otherwise = ErrorCode::internal);

}  // namespace shoal
