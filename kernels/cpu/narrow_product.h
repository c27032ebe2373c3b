// Forward products of few rows: a microbatch of a pipeline, the last rows of a batch. Without
// AVX-512 oneDNN 2.6.3 multiplies up to 263 rows by kernels that read b as it lies. Where its rows
// are a multiple of 4 KiB apart (3072 columns) they meet in a few sets of the caches, and half of
// the peak is left; here panels of b are packed while the one before is multiplied: 1.55 times as
// fast (docs/performance.md). Transposed b has no such rows: there oneDNN is the faster one.
#pragma once

#include "shoal/kernels/cpu/onednn.h"

namespace shoal::kernels {

// Whether narrow_product() is the one to take on this machine: no AVX-512, f32, one group, neither
// matrix transposed, no activation, 24 to 263 rows, and such a distance.
bool prefers_narrow_product(const GemmProblem& problem);

// As OneDnnGemm::run(). Each element is summed in the order of k, whatever the number of threads.
void narrow_product(const GemmProblem& problem, int threads, const float* a, const float* b,
                    const float* bias, float* c);

}  // namespace shoal::kernels
