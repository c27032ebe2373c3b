// What every test of this room needs: kernels, memory, a Context.
#pragma once

#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

#include "support/device.h"

#include "shoal/kernels/kernels.h"
#include "shoal/nn/autograd/context.h"

namespace shoal::nn {

struct Room {
  // threads: of the CPU's kernels.
  explicit Room(bool reference = false, int threads = 2)
      : kernels(reference ? kernels::make_reference_kernels()
                          : testing::make_test_kernels(threads)),
        host(testing::make_test_memory()),
        memory(*host),
        context(*kernels, memory, dispatcher) {}

  Tensor tensor(const Shape& shape, const std::vector<float>& values, DType dtype = DType::f32) {
    const Tensor f32 = context.empty(shape, DType::f32);
    std::copy(values.begin(), values.end(), f32.data<float>());
    return cast(f32, dtype);
  }
  Tensor ids(const Shape& shape, const std::vector<std::int32_t>& values) {
    const Tensor out = context.empty(shape, DType::i32);
    std::copy(values.begin(), values.end(), out.data<std::int32_t>());
    return out;
  }
  Tensor cast(const Tensor& tensor, DType dtype) {
    if (tensor.dtype() == dtype) return tensor;
    const Tensor in = testing::on_cuda() ? reachable(tensor) : tensor;
    const Tensor out = context.empty(tensor.shape(), dtype);
    kernels->elementwise().cast(in, out.view(), {});
    testing::synchronise();  // the test reads it
    return out;
  }
  // A copy that the device reads: a file's tensors are mapped, not pinned.
  Tensor reachable(const Tensor& tensor) {
    const Tensor copy = context.empty(tensor.shape(), tensor.dtype());
    if (tensor.bytes() > 0) std::memcpy(copy.view().data, tensor.const_view().data, tensor.bytes());
    return copy;
  }
  // Deterministic values in [-scale, scale].
  Tensor random(const Shape& shape, std::uint32_t seed, float scale = 1, DType dtype = DType::f32) {
    std::vector<float> values(static_cast<std::size_t>(shape.count()));
    std::uint64_t state = seed * 0x9e3779b97f4a7c15ull + 1;
    for (float& value : values) {
      state = state * 6364136223846793005ull + 1442695040888963407ull;
      value = scale * (static_cast<float>(state >> 40) * 0x1p-23f - 1.0f);
    }
    return tensor(shape, values, dtype);
  }

  std::unique_ptr<kernels::Kernels> kernels;
  std::unique_ptr<MemoryResource> host;
  CountingMemory memory;
  DirectDispatcher dispatcher;
  Context context;
};

}  // namespace shoal::nn
