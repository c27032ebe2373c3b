// Launchers of reduction.cu. No alignment is assumed; the launchers are fast if all pointers have
// the same offset from a multiple of 16 bytes.
#pragma once

#include <cstdint>

#include "shoal/kernels/cuda/launch.cuh"
#include "shoal/kernels/reduction.h"
#include "shoal/runtime/tensor/dtype.h"

namespace shoal::kernels {

// Passed by value. The device can read and write these pointers, including those of its peers.
struct ReducePointers {
  static constexpr int kMost = 64;
  const void* sources[kMost];
  void* destinations[kMost];
  int source_count = 0, destination_count = 0;
};

// destinations[d][i] = fold over sources[s][i], s in order.
cudaError_t launch_reduce(Launch at, Reduce fold, DType dtype, const ReducePointers& pointers,
                          std::int64_t count);
// The same for 16-bit floats, stored in f32 to one destination that is aligned to its element.
cudaError_t launch_reduce_widened(Launch at, Reduce fold, DType dtype,
                                  const ReducePointers& pointers, std::int64_t count);
// x *= factor, floating dtypes.
cudaError_t launch_reduction_scale(Launch at, DType dtype, void* x, double factor,
                                   std::int64_t count);

}  // namespace shoal::kernels
