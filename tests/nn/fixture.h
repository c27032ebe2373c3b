// The common fixture of this library's tests: kernels, memory and a Context.
#pragma once

#include <cstdint>
#include <cstring>
#include <memory>
#include <string_view>
#include <vector>

#include "support/device.h"
#include "support/golden.h"

#include "shoal/kernels/kernels.h"
#include "shoal/nn/autograd/context.h"
#include "shoal/nn/autograd/dispatcher.h"

namespace shoal::nn {

// shared: memory that both the test and the kernels can access. device: the memory that real runs
// use, which a test reads through testing::on_host(). job: the same, but ids and input() are in
// host memory, where a loader puts them.
enum class FixtureMemory { shared, device, job };

struct Fixture {
  // threads: the number of threads of the CPU kernels.
  explicit Fixture(bool reference = false, int threads = 2,
                   FixtureMemory where = FixtureMemory::shared)
      : kernels(reference ? kernels::make_reference_kernels()
                          : testing::make_test_kernels(threads)),
        host(where != FixtureMemory::shared ? testing::make_test_device_memory()
                                            : testing::make_test_memory()),
        inputs(where == FixtureMemory::job ? make_host_memory() : nullptr),
        memory(*host),
        context(*kernels, memory, dispatcher) {}

  Tensor tensor(const Shape& shape, const std::vector<float>& values, DType dtype = DType::f32) {
    return cast(context.upload(values.data(), shape, DType::f32, MemoryTag::activations), dtype);
  }
  // The test fills it in.
  Tensor input(const Shape& shape, DType dtype) {
    return inputs ? Tensor::empty(shape, dtype, *inputs, MemoryTag::data)
                  : context.empty(shape, dtype);
  }
  Tensor ids(const Shape& shape, const std::vector<std::int32_t>& values) {
    if (inputs) {
      const Tensor made = input(shape, DType::i32);
      std::copy(values.begin(), values.end(), made.data<std::int32_t>());
      return made;
    }
    const Tensor made = context.upload(values.data(), shape, DType::i32, MemoryTag::activations);
    testing::synchronise();  // the test may read it
    return made;
  }
  Tensor cast(const Tensor& tensor, DType dtype) {
    if (tensor.dtype() == dtype && !testing::on_cuda()) return tensor;
    const Tensor in = testing::on_cuda() ? reachable(tensor) : tensor;
    const Tensor out = context.empty(tensor.shape(), dtype);
    kernels->elementwise().cast(in, out.view(), {});
    testing::synchronise();  // the test may read it
    return out;
  }
  // Returns a copy that the device can read, because a file's tensors are mapped and not pinned.
  Tensor reachable(const Tensor& tensor) {
    if (tensor.device() == kernels->device()) return tensor;
    return context.upload(tensor.const_view().data, tensor.shape(), tensor.dtype(),
                          MemoryTag::activations);
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
  std::unique_ptr<MemoryResource> host, inputs;
  CountingMemory memory;
  DirectDispatcher dispatcher;
  Context context;
};

// testing::close_in_norm for tensors in any memory.
inline ::testing::AssertionResult close_in_norm(std::string_view name, const Tensor& actual,
                                                const Tensor& expected, double tolerance,
                                                double floor = 0) {
  const Tensor a = testing::on_host(actual), b = testing::on_host(expected);
  return testing::close_in_norm(name, a, b, tolerance, floor);
}

}  // namespace shoal::nn
