// Queues a kernel. The one place that launches: tests put the emulated GPU's in its stead
// (tests/support/emulated_gpu).
#pragma once

#include <cstddef>

#include <cuda_runtime_api.h>

namespace shoal::kernels {

// kernel(args...) by `grid` blocks of `block` threads, each block with so many bytes of dynamic
// shared memory. Arguments become the kernel's parameters; one that has its type already is handed
// over where it lies, where <<<>>> would copy tables of 32 KiB once more.
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
