// Stream and grid size of a launch.
#pragma once

#include <cstdint>

#include <cuda_runtime_api.h>

namespace shoal::kernels {

struct Launch {
  cudaStream_t stream;
  int multiprocessors;
};

// Number of blocks of `threads` threads for `items` items, at least 1. It is limited to the blocks
// that fill the device; threads then take several items, in grid strides.
inline unsigned grid_for(std::int64_t items, int threads, int multiprocessors) {
  const std::int64_t wanted = (items + threads - 1) / threads;
  const std::int64_t most = static_cast<std::int64_t>(multiprocessors) * (2048 / threads);
  return static_cast<unsigned>(wanted < 1 ? 1 : wanted < most ? wanted : most);
}

}  // namespace shoal::kernels
