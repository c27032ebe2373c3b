// Column sums, for gradients of biases.
#pragma once

#include <cstdint>

#include "shoal/runtime/tensor/tensor.h"

namespace shoal::kernels {

// sums[j] = x[0, j] + ... + x[rows - 1, j] in f32, in row order. x [rows, columns] is f32, bf16 or
// f16, with rows `stride` elements apart.
void sum_of_rows(const void* x, DType dtype, std::int64_t rows, std::int64_t columns,
                 std::int64_t stride, float* sums);

}  // namespace shoal::kernels
