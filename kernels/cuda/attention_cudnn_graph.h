// Attention as a graph of cuDNN operations, and the ids of its tensors.
#pragma once

#include "shoal/kernels/cuda/attention_cudnn.h"
#include "shoal/kernels/cuda/cudnn_descriptor.h"

namespace shoal::kernels::cudnn {

// Ids of a call's tensors; virtual tensors have higher ids.
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
  kOffsets,  // first of nine: kQ to kDV without kLogSumExp, which comes last
  kFirstVirtual = kOffsets + 9
};

// Index into CudnnAttentionPointers::offsets.
inline std::int64_t offset_index(Uid uid) {
  if (uid == kLogSumExp || uid == kDelta) return 8;
  return uid < kLogSumExp ? uid - kQ : uid - kDOut + 4;
}

// Returns the finalised graph; `handle` is null for a device that is only described. Throws
// Refusal.
Descriptor attention_graph(const CudnnAttentionKey& key, cudnnHandle_t handle);

}  // namespace shoal::kernels::cudnn
