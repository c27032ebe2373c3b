// A program with this source runs its tests on CUDA's kernels, unless the environment names another
// device. Under AddressSanitizer allocations have exactly the requested size.
#include <cstdlib>

namespace {
[[maybe_unused]] const int kChosen = setenv("SHOAL_TEST_DEVICE", "cuda", 0);
#ifdef __SANITIZE_ADDRESS__
[[maybe_unused]] const int kExact = setenv("SHOAL_TEST_SANITIZE", "1", 0);
#endif
}  // namespace
