// What is given less to do where the GPU is emulated (support/emulated_gpu).
#pragma once

#include <cstdlib>

#include "shoal/runtime/device/device.h"

namespace shoal::testing {

// The emulated GPU takes a thousand times as long as a real one; SHOAL_TEST_FULL gives it the time.
inline bool has_little_time() {
  const DeviceBackend& cuda = device_backend(DeviceType::cuda);
  return cuda.count() > 0 && cuda.describe(Device::cuda(0)).starts_with("Emulated") &&
         !std::getenv("SHOAL_TEST_FULL");
}

}  // namespace shoal::testing
