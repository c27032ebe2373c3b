// Checks the status of CUDA runtime calls.
#pragma once

#include <cuda_runtime_api.h>

#include "shoal/runtime/base/error.h"
#include "shoal/runtime/device/device.h"

namespace shoal {

// Throws unless `status` is cudaSuccess: out_of_memory; unavailable if the device does not exist or
// its driver does not match; `otherwise` for all else. The message has `call` (a literal, the
// function's name), the device and CUDA's text. Clears CUDA's error, so that the thread's next call
// is not blamed for it.
void check_cuda(cudaError_t status, const char* call, Device device,
                ErrorCode otherwise = ErrorCode::internal);

}  // namespace shoal
