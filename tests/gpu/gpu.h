// What the tests of this room share.
#pragma once

#include "support/little_time.h"
#include <gtest/gtest.h>

#include "shoal/runtime/device/device.h"

// At the top of a test that needs a GPU.
#define SHOAL_NEEDS_GPU()                                              \
  if (::shoal::device_backend(::shoal::DeviceType::cuda).count() == 0) \
  GTEST_SKIP() << "there is no CUDA device here"
