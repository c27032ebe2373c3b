#include "shoal/runtime/device/current_cuda_device.h"

#include <optional>

#include "shoal/runtime/device/cuda_check.h"
#include "shoal/runtime/device/cuda_driver.h"

namespace shoal {
namespace {

// Type of the driver's cuDevicePrimaryCtxGetState(device, flags, active). A CUdevice is the
// device's index.
using GetState = int (*)(int, unsigned*, int*);

// True if this process has a primary context on the device; nullopt if the driver does not know.
std::optional<bool> has_context(int device) {
  static const auto get_state =
      reinterpret_cast<GetState>(cuda_driver_function("cuDevicePrimaryCtxGetState"));
  unsigned flags = 0;
  int active = 0;
  if (!get_state || get_state(device, &flags, &active) != 0) return std::nullopt;
  return active != 0;
}

}  // namespace

CurrentCudaDevice::CurrentCudaDevice(Device device) {
  const char* call = "cudaGetDevice";
  cudaError_t status = cudaGetDevice(&previous_);
  if (status == cudaSuccess && previous_ != device.index) {
    call = "cudaSetDevice";
    status = cudaSetDevice(device.index);
    changed_ = true;
  }
  check_cuda(status, call, device, ErrorCode::unavailable);
}

CurrentCudaDevice::CurrentCudaDevice(Device device, std::nothrow_t) noexcept {
  if (cudaGetDevice(&previous_) == cudaSuccess && previous_ != device.index)
    changed_ = cudaSetDevice(device.index) == cudaSuccess;
  (void)cudaGetLastError();
}

CurrentCudaDevice::~CurrentCudaDevice() {
  if (changed_ && has_context(previous_).value_or(true)) (void)cudaSetDevice(previous_);
}

void use_cuda_device_with_context() noexcept {
  int current = 0, devices = 0;
  if (cudaGetDevice(&current) != cudaSuccess || has_context(current).value_or(true)) return;
  if (cudaGetDeviceCount(&devices) != cudaSuccess) return;
  for (int device = 0; device < devices; ++device)
    if (has_context(device).value_or(false)) {
      (void)cudaSetDevice(device);
      return;
    }
}

}  // namespace shoal
