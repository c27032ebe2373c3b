// A program with this source runs its ranks over NCCL's shim, each on its own GPU, unless the
// environment says otherwise.
#include <cstdlib>

namespace {
[[maybe_unused]] const int kChosen =
    setenv("SHOAL_TEST_BACKEND", "nccl", 0) + setenv("SHOAL_EMULATED_GPUS", "4", 0);
}  // namespace
