#include "shoal/runtime/device/cuda_check.h"

namespace shoal {
namespace {

ErrorCode code_of(cudaError_t status, ErrorCode otherwise) {
  switch (status) {
    case cudaErrorMemoryAllocation:
      return ErrorCode::out_of_memory;
    case cudaErrorNoDevice:
    case cudaErrorInvalidDevice:
    case cudaErrorInsufficientDriver:
    case cudaErrorDevicesUnavailable:
    case cudaErrorSystemDriverMismatch:
      return ErrorCode::unavailable;
    default:
      return otherwise;
  }
}

}  // namespace

void check_cuda(cudaError_t status, const char* call, Device device, ErrorCode otherwise) {
  if (status == cudaSuccess) [[likely]]
    return;
  (void)cudaGetLastError();
  throw_error(code_of(status, otherwise), "{} on {}: {} ({})", call, to_string(device),
              cudaGetErrorString(status), cudaGetErrorName(status));
}

}  // namespace shoal
