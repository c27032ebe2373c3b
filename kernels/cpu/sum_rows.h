// Sums of columns, for biases' gradients.
#pragma once

#include <cstdint>

#include "shoal/runtime/tensor/tensor.h"

namespace shoal::kernels {

// sums[j] = x[begin, j] + ... + x[end - 1, j] in f32, in the order of rows. x [rows, columns] of
// f32, bf16 or f16.
void sum_of_rows(const ConstView& x, std::int64_t begin, std::int64_t end, float* sums);

}  // namespace shoal::kernels
