// Grouped-query attention by kernels that know one key head a head: keys and values are copied to
// as many heads as read them, and the copies' gradients are added up. Launchers of
// attention_groups.cu.
#pragma once

#include <cstdint>

#include "shoal/kernels/cuda/launch.cuh"
#include "shoal/runtime/tensor/dtype.h"

namespace shoal::kernels {

// One side has `key_heads` heads a row, at these strides; the other, contiguous [batch, length,
// key_heads · group, head_dim], has each of them `group` times in turn.
struct GroupedHeads {
  std::int64_t batch, length, key_heads, group, head_dim;
  std::int64_t batch_stride, row_stride;  // elements
};
cudaError_t launch_expand_heads(Launch at, DType dtype, const GroupedHeads& shape, const void* x,
                                void* expanded);
// In the order of the heads, in f32, rounded once.
cudaError_t launch_fold_heads(Launch at, DType dtype, const GroupedHeads& shape,
                              const void* expanded, void* out);

}  // namespace shoal::kernels
