// launch_kernel on the emulated GPU; replaces the one of kernels/cuda.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <tuple>
#include <vector>

#include "support/emulated_gpu/block.h"
#include <cuda_runtime_api.h>

namespace shoal::kernels {

template <typename... P, typename... A>
[[nodiscard]] cudaError_t launch_kernel(void (*kernel)(P...), const emulated_gpu::Grid& grid,
                                        dim3 block, std::size_t dynamic_shared, cudaStream_t stream,
                                        const A&... args) {
  static_assert(sizeof...(P) == sizeof...(A), "as many arguments as the kernel has parameters");
  std::vector<std::uintptr_t> words;
  const auto add = [&]<typename T>(const T& parameter) {
    const std::size_t first = words.size();
    words.resize(first + (sizeof(T) + sizeof(std::uintptr_t) - 1) / sizeof(std::uintptr_t));
    // Padding holds arbitrary bytes, which could look like an address, so clear it.
    T plain = parameter;
    __builtin_clear_padding(&plain);
    std::memcpy(words.data() + first, &plain, sizeof(T));
  };
  return [&](const P&... parameters) {
    (add(parameters), ...);
    return emulated_gpu::queue_launch(
        reinterpret_cast<const void*>(kernel), grid, block, dynamic_shared, stream,
        [kernel, kept = std::make_shared<const std::tuple<P...>>(parameters...)] {
          std::apply(kernel, *kept);
        },
        words);
  }(args...);
}

}  // namespace shoal::kernels
