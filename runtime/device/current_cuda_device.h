// The calling thread's current device, which CUDA calls act on.
//
// A process has a primary context, hundreds of MiB, on each device that it uses. Since CUDA 12.0,
// cudaSetDevice() creates one (Programming Guide, "Initialization"), and so does nearly every call
// on the thread's current device: device 0 in a thread that has set none. Without care, every rank
// of a host would have a context on device 0 besides its own.
#pragma once

#include <new>

#include "shoal/runtime/device/device.h"

namespace shoal {

// Makes `device` current, and restores the previous device on destruction. If this process has no
// context on the previous one, the thread keeps `device`. Querying costs some tens of nanoseconds,
// setting microseconds. Throws out_of_memory or unavailable; with std::nothrow, failures are
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

// For calls that belong to no device, such as those for pinned memory. If the thread's current
// device has no context, makes the first device that has one current for good.
void use_cuda_device_with_context() noexcept;

}  // namespace shoal
