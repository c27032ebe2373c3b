// A program with this source runs its tests on CUDA's kernels, unless the environment names another
// device.
#include <cstdlib>

namespace {
[[maybe_unused]] const int kChosen = setenv("SHOAL_TEST_DEVICE", "cuda", 0);
}  // namespace
