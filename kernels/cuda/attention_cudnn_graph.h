// Attention as a graph of cuDNN's operations, and the names of its tensors.
#pragma once

#include "shoal/kernels/cuda/attention_cudnn.h"
#include "shoal/kernels/cuda/cudnn_descriptor.h"

namespace shoal::kernels::cudnn {

// Names of what a call passes; those of virtual tensors come after.
enum Uid : std::int64_t {
  kQ = 1,
  kK,
  kV,
  kOut,
  kLogSumExp,
  kDOut,
  kDQ,
  kDK,
  kDV,
  kDelta,
  kScale,
  kOne,
  kMinusInfinity,
  kQueries,
  kKeys,
  kQueryLengths,
  kKeyLengths,
  kOffsets,  // the first of nine, of tensors kQ to kDV but log_sum_exp, which is last
  kFirstVirtual = kOffsets + 9
};

// Of CudnnAttentionPointers::offsets.
inline std::int64_t offset_index(Uid uid) {
  if (uid == kLogSumExp || uid == kDelta) return 8;
  return uid < kLogSumExp ? uid - kQ : uid - kDOut + 4;
}

// Final; `handle` is null where the device is only described. Throws Refusal.
Descriptor attention_graph(const CudnnAttentionKey& key, cudnnHandle_t handle);

}  // namespace shoal::kernels::cudnn
