// Sets the calling thread's current device, on which CUDA calls act.
//
// A process has a primary context of hundreds of MiB on each device that it uses. Since CUDA 12.0,
// cudaSetDevice() creates one (Programming Guide, "Initialization"). Nearly every other call
// creates one on the thread's current device, which is device 0 until the thread sets another.
// Without care, every rank of a host would also have a context on device 0.
#pragma once

#include <new>

#include "shoal/runtime/device/device.h"

namespace shoal {

// Makes `device` current, and restores the previous device on destruction. If this process has no
// context on the previous device, `device` stays current. A query takes tens of nanoseconds, a
// change microseconds. Throws out_of_memory or unavailable; with std::nothrow, failures are
// ignored.
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

// For calls that concern no particular device, such as those for pinned memory. If the thread's
// current device has no context, permanently makes the first device with a context current.
void use_cuda_device_with_context() noexcept;

}  // namespace shoal
