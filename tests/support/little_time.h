// Tells whether a test should do less because the GPU is emulated (support/emulated_gpu).
#pragma once

#include <cstdlib>

#include "shoal/runtime/device/device.h"

namespace shoal::testing {

// The emulated GPU is about a thousand times slower than a real one. SHOAL_TEST_FULL runs
// everything anyway.
inline bool has_little_time() {
  const DeviceBackend& cuda = device_backend(DeviceType::cuda);
  return cuda.count() > 0 && cuda.describe(Device::cuda(0)).starts_with("Emulated") &&
         !std::getenv("SHOAL_TEST_FULL");
}

}  // namespace shoal::testing
