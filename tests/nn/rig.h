// Common helpers of the tests in nn/: a context over counted memory, filled tensors
// and small Functions.
#pragma once

#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "support/device.h"
#include "support/golden.h"

#include "shoal/nn/autograd/dispatcher.h"
#include "shoal/nn/autograd/tape.h"
#include "shoal/nn/layers/conv1d.h"
#include "shoal/nn/layers/lm_head.h"
#include "shoal/runtime/base/error.h"

namespace shoal::nn {

// Multiples of 1/64 in [-1, 1]. They and their sums with 1/32 are exact in bf16 too.
inline Tensor filled(const Shape& shape, DType dtype, MemoryResource& memory, std::uint32_t seed,
                     MemoryTag tag = MemoryTag::data) {
  const Tensor tensor = Tensor::empty(shape, dtype, memory, tag);
  std::vector<float> values;
  std::uint32_t state = seed * 2654435761u + 12345u;
  for (std::int64_t i = 0; i < tensor.count(); ++i) {
    state = state * 1664525u + 1013904223u;
    values.push_back(static_cast<float>(static_cast<int>(state >> 16) % 129 - 64) / 64.0f);
  }
  if (dtype == DType::bf16)
    testing::set_values(tensor, std::vector<bfloat16>(values.begin(), values.end()));
  else if (dtype == DType::f16)
    testing::set_values(tensor, std::vector<float16>(values.begin(), values.end()));
  else
    testing::set_values(tensor, values);
  return tensor;
}

inline std::vector<float> floats(const Tensor& tensor) {
  const auto widened = [](const auto& values) {
    return std::vector<float>(values.begin(), values.end());
  };
  if (tensor.dtype() == DType::bf16) return widened(testing::values_of<bfloat16>(tensor));
  if (tensor.dtype() == DType::f16) return widened(testing::values_of<float16>(tensor));
  return testing::values_of<float>(tensor);
}

inline ::testing::AssertionResult same_bits(const Tensor& a, const Tensor& b) {
  if (!a.defined() || !b.defined() || a.shape() != b.shape() || a.dtype() != b.dtype())
    return ::testing::AssertionFailure() << "not of one shape and dtype";
  std::vector<std::byte> of_a(a.bytes()), of_b(b.bytes());
  testing::copy_to_test(of_a.data(), a);
  testing::copy_to_test(of_b.data(), b);
  if (of_a == of_b) return ::testing::AssertionSuccess();
  const std::vector<float> x = floats(a), y = floats(b);
  for (std::size_t i = 0; i < x.size(); ++i)
    if (x[i] != y[i])
      return ::testing::AssertionFailure() << "element " << i << ": " << x[i] << " and " << y[i];
  return ::testing::AssertionFailure() << "differ in the sign of a zero or in a NaN";
}

// The kernels, memory and context of one rank. Only allocations of forward and backward count as
// activations: inputs made here count as data.
struct Rig {
  std::unique_ptr<MemoryResource> host = testing::make_test_memory();
  std::unique_ptr<MemoryResource> apart;  // holds all but the inputs; null: `host` holds them too
  CountingMemory memory;
  std::unique_ptr<kernels::Kernels> table;
  DirectDispatcher direct;
  Context context;

  explicit Rig(std::unique_ptr<kernels::Kernels> kernels = testing::make_test_kernels(0),
               Dispatcher* dispatcher = nullptr, std::unique_ptr<MemoryResource> where = nullptr)
      : apart(std::move(where)),
        memory(apart ? *apart : *host),
        table(std::move(kernels)),
        context(*table, memory, dispatcher ? *dispatcher : static_cast<Dispatcher&>(direct)) {}

  Tensor tensor(const Shape& shape, std::uint32_t seed, DType dtype = DType::f32) {
    return filled(shape, dtype, memory, seed);
  }
  // The test fills it in.
  Tensor input(const Shape& shape, DType dtype) {
    return Tensor::empty(shape, dtype, apart ? *host : static_cast<MemoryResource&>(memory),
                         MemoryTag::data);
  }
  Tensor ids(const std::vector<std::int32_t>& values, const Shape& shape) {
    Tensor tensor = input(shape, DType::i32);
    std::copy(values.begin(), values.end(), tensor.data<std::int32_t>());
    return tensor;
  }
  // A parameter with a value and a gradient full of 77, which shows if an accumulation adds where
  // it should overwrite.
  std::shared_ptr<Parameter> parameter(const std::string& name, const Shape& shape,
                                       std::uint32_t seed, DType dtype = DType::f32) {
    auto made = std::make_shared<Parameter>(name, shape, Initializer{});
    give(*made, seed, dtype);
    return made;
  }
  void give(Parameter& parameter, std::uint32_t seed, DType dtype = DType::f32) {
    parameter.value = filled(parameter.shape(), dtype, memory, seed, MemoryTag::parameters);
    parameter.gradient = Tensor::empty(parameter.shape(), DType::f32, memory, MemoryTag::gradients);
    spoil(parameter);
  }
  static void spoil(Parameter& parameter) {
    testing::set_values(
        parameter.gradient,
        std::vector<float>(static_cast<std::size_t>(parameter.gradient.count()), 77.0f));
    parameter.clear_gradient();
  }
  Tensor copy(const Tensor& tensor) {
    Tensor made = tensor.device() == memory.device()
                      ? Tensor::empty(tensor.shape(), tensor.dtype(), memory, MemoryTag::data)
                      : input(tensor.shape(), tensor.dtype());
    std::vector<std::byte> bytes(tensor.bytes());
    testing::copy_to_test(bytes.data(), tensor);
    testing::copy_from_test(made, bytes.data());
    return made;
  }
  std::int64_t activations() const { return memory.usage(MemoryTag::activations).current; }
  std::int64_t peak_activations() const { return memory.usage(MemoryTag::activations).peak; }
};

// Runs `fn` and returns its Error's text, of which tests check parts.
template <typename Fn>
std::string error_of(Fn&& fn) {
  try {
    fn();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

// y = x. Backward passes the gradient on unchanged and calls `visit`. It uses only the public
// interface.
class VisitFunction final : public Function {
 public:
  explicit VisitFunction(std::function<void()> visit) : visit_(std::move(visit)) {}
  std::string_view name() const override { return "visit"; }
  std::vector<Tensor> backward(BackwardContext&, std::span<Tensor> gradients) override {
    visit_();
    return {std::move(gradients[0])};
  }

 private:
  std::function<void()> visit_;
};
inline Value visited(Context& context, const Value& x, std::function<void()> visit) {
  if (!context.records({&x, 1}, {})) return x;
  return context.tape->record(std::make_unique<VisitFunction>(std::move(visit)), {&x, 1}, {},
                              {x.tensor})[0];
}

}  // namespace shoal::nn
