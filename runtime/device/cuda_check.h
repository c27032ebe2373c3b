// The one look at what a call of CUDA's runtime API answered.
#pragma once

#include <cuda_runtime_api.h>

#include "shoal/runtime/base/error.h"
#include "shoal/runtime/device/device.h"

namespace shoal {

// Throws unless `status` is cudaSuccess: out_of_memory; unavailable, where there is no such device
// or its driver does not fit; `otherwise` for all else. The message has `call` (a literal, the
// function's name), the device and CUDA's words. CUDA's own note of the failure is taken back, or
// the thread's next call would be blamed.
void check_cuda(cudaError_t status, const char* call, Device device,
                ErrorCode otherwise = ErrorCode::internal);

}  // namespace shoal
