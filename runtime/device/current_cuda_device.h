// The calling thread's current device, on which CUDA's calls act.
//
// A process has a primary context on each device that it uses, of hundreds of MiB there. Since CUDA
// 12.0 cudaSetDevice() makes one (Programming Guide, "Initialization"), as nearly every call does
// on the thread's current device: device 0 in a thread that has set none. Without care each rank of
// a host would have one on device 0 besides its own.
#pragma once

#include <new>

#include "shoal/runtime/device/device.h"

namespace shoal {

// Makes `device` current, and puts the one of before back at the end: not where this process has no
// context on that one. Such a thread keeps the device. Asking costs some tens of nanoseconds,
// setting microseconds. Throws out_of_memory or unavailable; with std::nothrow it tries.
class CurrentCudaDevice {
 public:
  explicit CurrentCudaDevice(Device device);
  CurrentCudaDevice(Device device, std::nothrow_t) noexcept;
  ~CurrentCudaDevice();
  CurrentCudaDevice(const CurrentCudaDevice&) = delete;
  CurrentCudaDevice& operator=(const CurrentCudaDevice&) = delete;

 private:
  int previous_ = 0;
  bool changed_ = false;
};

// For calls that belong to no device, such as those of pinned memory: where there is no context on
// the calling thread's current device, the first device that has one becomes current and stays so.
void use_cuda_device_with_context() noexcept;

}  // namespace shoal
