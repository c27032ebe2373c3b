// Where a kernel is queued, and in how many blocks.
#pragma once

#include <cstdint>

#include <cuda_runtime_api.h>

namespace shoal::kernels {

struct Launch {
  cudaStream_t stream;
  int multiprocessors;
};

// Blocks of `threads` for `items`, one a thread and the rest in grid strides: never 0, and no more
// than fill the device.
inline unsigned grid_for(std::int64_t items, int threads, int multiprocessors) {
  const std::int64_t wanted = (items + threads - 1) / threads;
  const std::int64_t most = static_cast<std::int64_t>(multiprocessors) * (2048 / threads);
  return static_cast<unsigned>(wanted < 1 ? 1 : wanted < most ? wanted : most);
}

}  // namespace shoal::kernels
