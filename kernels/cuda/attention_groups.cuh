// Grouped-query attention for kernels that need one key head per query head. Keys and values are
// copied for each query head that reads them, and the copies' gradients are summed. Launchers of
// attention_groups.cu.
#pragma once

#include <cstdint>

#include "shoal/kernels/cuda/launch.cuh"
#include "shoal/runtime/tensor/dtype.h"

namespace shoal::kernels {

// One tensor has `key_heads` heads per row, with these strides. The expanded tensor is contiguous
// [batch, length, key_heads·group, head_dim] and repeats each key head `group` times in succession.
struct GroupedHeads {
  std::int64_t batch, length, key_heads, group, head_dim;
  std::int64_t batch_stride, row_stride;  // elements
};
cudaError_t launch_expand_heads(Launch at, DType dtype, const GroupedHeads& shape, const void* x,
                                void* expanded);
// Sums in head order, in f32, rounded once.
cudaError_t launch_fold_heads(Launch at, DType dtype, const GroupedHeads& shape,
                              const void* expanded, void* out);

}  // namespace shoal::kernels
