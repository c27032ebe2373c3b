// Queues a kernel. All launches use this function. Tests replace this file with the emulated GPU's
// file (tests/support/emulated_gpu).
#pragma once

#include <cstddef>

#include <cuda_runtime_api.h>

namespace shoal::kernels {

// Runs kernel(args...) in `grid` blocks of `block` threads, with `dynamic_shared` bytes of dynamic
// shared memory per block. Arguments convert to the kernel's parameters. An argument that already
// has the right type is passed without a copy; <<<>>> would copy tables of 32 KiB once more.
template <typename... P, typename... A>
[[nodiscard]] cudaError_t launch_kernel(void (*kernel)(P...), dim3 grid, dim3 block,
                                        std::size_t dynamic_shared, cudaStream_t stream,
                                        const A&... args) {
  static_assert(sizeof...(P) == sizeof...(A), "as many arguments as the kernel has parameters");
  return [&](const P&... parameters) {
    void* table[] = {const_cast<void*>(static_cast<const void*>(&parameters))...};
    return cudaLaunchKernel(reinterpret_cast<const void*>(kernel), grid, block, table,
                            dynamic_shared, stream);
  }(args...);
}

}  // namespace shoal::kernels
