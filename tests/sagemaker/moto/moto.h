// The objects that tests/sagemaker/moto/with_moto creates in moto and in the environment.
#pragma once

#include <cstdlib>

#include <gtest/gtest.h>

namespace shoal::test {

inline constexpr const char* kMotoJob = "moto-job";  // its log has "line 0" to "line 24"
inline constexpr const char* kMotoBucket = "shoal-test";

}  // namespace shoal::test

#define SHOAL_SKIP_WITHOUT_MOTO() \
  if (std::getenv("MOTO_URL") == nullptr) GTEST_SKIP() << "tests/sagemaker/moto/with_moto runs it"
