// What the tests of this library share.
#pragma once

#include "support/little_time.h"
#include <gtest/gtest.h>

#include "shoal/runtime/device/device.h"

namespace shoal::testing {

// What cuBLASLt and cuDNN take there is ours to say.
inline bool is_emulated() {
  return device_backend(DeviceType::cuda).describe(Device::cuda(0)).starts_with("Emulated");
}

}  // namespace shoal::testing

// At the top of a test that needs a GPU.
#define SHOAL_NEEDS_GPU()                                              \
  if (::shoal::device_backend(::shoal::DeviceType::cuda).count() == 0) \
  GTEST_SKIP() << "there is no CUDA device here"
