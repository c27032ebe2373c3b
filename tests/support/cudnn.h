// Tells whether cuDNN may compute attention in the tests' kernels, on a real or an emulated GPU.
#pragma once

#include <cstdio>
#include <string>

#include "support/device.h"

namespace shoal::testing {

// The cuDNN version in Kernels::describe(): "... cuDNN 9.19.0" gives 91900. 0 without cuDNN.
inline int cudnn_version_of(const std::string& described) {
  int major = 0, minor = 0, patch = 0;
  const auto at = described.find("cuDNN ");
  if (at == std::string::npos ||
      std::sscanf(described.c_str() + at, "cuDNN %d.%d.%d", &major, &minor, &patch) != 3)
    return 0;
  return 10000 * major + 100 * minor + patch;
}

// The compute capability in Kernels::describe(): "... compute capability 9.0 ..." gives 90. 0 if
// the text names none.
inline int capability_of(const std::string& described) {
  int major = 0, minor = 0;
  const auto at = described.find("compute capability ");
  if (at == std::string::npos ||
      std::sscanf(described.c_str() + at, "compute capability %d.%d", &major, &minor) != 2)
    return 0;
  return 10 * major + minor;
}

struct AttentionByCudnn {
  std::string why_not;          // why cuDNN is not used; empty: it is
  bool packed_gradient = true;  // false before cuDNN 9.0: it lacks that gradient
};

// Follows the rules of docs/internals/gpu.md for the choice of the attention kernel.
inline AttentionByCudnn attention_by_cudnn() {
  if (!on_cuda()) return {"needs a GPU", false};
  const std::string described = make_test_kernels()->describe();
  const int version = cudnn_version_of(described), capability = capability_of(described);
  if (version < 91501) return {"needs cuDNN 9.15.1; this is " + described, false};
  if (capability < 80) return {"needs compute capability 8.0; this is " + described, false};
  return {"", capability >= 90};
}

}  // namespace shoal::testing
