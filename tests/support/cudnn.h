// Which cuDNN may compute attention in the tests' kernels, on a real GPU as on an emulated one.
#pragma once

#include <cstdio>
#include <string>

#include "support/device.h"

namespace shoal::testing {

// "... cuDNN 9.19.0" of Kernels::describe() as 91900; 0 where there is none.
inline int cudnn_version_of(const std::string& described) {
  int major = 0, minor = 0, patch = 0;
  const auto at = described.find("cuDNN ");
  if (at == std::string::npos ||
      std::sscanf(described.c_str() + at, "cuDNN %d.%d.%d", &major, &minor, &patch) != 3)
    return 0;
  return 10000 * major + 100 * minor + patch;
}

// "... compute capability 9.0 ..." of it as 90; 0 where it says none.
inline int capability_of(const std::string& described) {
  int major = 0, minor = 0;
  const auto at = described.find("compute capability ");
  if (at == std::string::npos ||
      std::sscanf(described.c_str() + at, "compute capability %d.%d", &major, &minor) != 2)
    return 0;
  return 10 * major + minor;
}

struct AttentionByCudnn {
  std::string why_not;          // empty: lengths and packed sequences are its
  bool packed_gradient = true;  // before 9.0 that of packed sequences is refused
};

// As docs/internals/gpu.md says who computes attention.
inline AttentionByCudnn attention_by_cudnn() {
  if (!on_cuda()) return {"needs a GPU", false};
  const std::string described = make_test_kernels()->describe();
  const int version = cudnn_version_of(described), capability = capability_of(described);
  if (version < 91501) return {"needs cuDNN 9.15.1; this is " + described, false};
  if (capability < 80) return {"needs compute capability 8.0; this is " + described, false};
  return {"", capability >= 90};
}

}  // namespace shoal::testing
