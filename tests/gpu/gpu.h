// What the tests of this room share.
#pragma once

#include <cstdlib>

#include <gtest/gtest.h>

#include "shoal/runtime/device/device.h"

// At the top of a test that needs a GPU.
#define SHOAL_NEEDS_GPU()                                              \
  if (::shoal::device_backend(::shoal::DeviceType::cuda).count() == 0) \
  GTEST_SKIP() << "there is no CUDA device here"

namespace shoal::testing {

// The emulated GPU (tests/support/emulated_gpu) takes a thousand times as long: it is given less to
// do, but by SHOAL_TEST_FULL.
inline bool has_little_time() {
  return device_backend(DeviceType::cuda).describe(Device::cuda(0)).starts_with("Emulated") &&
         !std::getenv("SHOAL_TEST_FULL");
}

}  // namespace shoal::testing
