// Forward products with few rows, such as a pipeline's microbatch or the last rows of a batch.
// Without AVX-512, oneDNN 2.6.3 multiplies up to 263 rows with kernels that do not pack b. If the
// rows of b are a multiple of 4 KiB apart (3072 columns), they share a few cache sets, which halves
// the speed. This product packs each panel of b while the previous one is multiplied, and is 1.55
// times as fast (docs/lab/2026-11-measurements.md). Transposed b does not have such rows, so oneDNN
// is faster there.
#pragma once

#include "shoal/kernels/cpu/onednn.h"

namespace shoal::kernels {

// True if narrow_product() should be used on this machine: no AVX-512, f32, one group, neither
// matrix transposed, no activation, 24 to 263 rows, and such a row distance.
bool prefers_narrow_product(const GemmProblem& problem);

// Same contract as OneDnnGemm::run(). Each element is summed in the order of k for any number of
// threads.
void narrow_product(const GemmProblem& problem, int threads, const float* a, const float* b,
                    const float* bias, float* c);

}  // namespace shoal::kernels
