// Helpers that this folder's tests share.
#pragma once

#include "support/little_time.h"
#include <gtest/gtest.h>

#include "shoal/runtime/device/device.h"

namespace shoal::testing {

// The emulation decides how much memory cuBLASLt and cuDNN take.
inline bool is_emulated() {
  return device_backend(DeviceType::cuda).describe(Device::cuda(0)).starts_with("Emulated");
}

}  // namespace shoal::testing

// Skips a test that needs a GPU. Use it at the top of the test.
#define SHOAL_NEEDS_GPU()                                              \
  if (::shoal::device_backend(::shoal::DeviceType::cuda).count() == 0) \
  GTEST_SKIP() << "there is no CUDA device here"
