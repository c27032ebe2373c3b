#include "shoal/nn/autograd/context.h"

#include <algorithm>

#include "shoal/kernels/kernels.h"
#include "shoal/nn/autograd/device_values.h"
#include "shoal/nn/autograd/dispatcher.h"
#include "shoal/runtime/base/error.h"

namespace shoal::nn {

Context::Context(kernels::Kernels& kernels, MemoryResource& memory, Dispatcher& dispatcher)
    : stream(kernels.stream()), kernels_(kernels), memory_(memory), dispatcher_(dispatcher) {}

double Context::read(const Tensor& scalar) const { return read_scalar(scalar, stream); }

Tensor Context::empty(const Shape& shape, DType dtype, MemoryTag tag) const {
  return Tensor::empty(shape, dtype, memory_, tag, stream);
}

Tensor Context::upload(const void* values, const Shape& shape, DType dtype, MemoryTag tag) const {
  Tensor tensor = empty(shape, dtype, tag);
  if (tensor.bytes() > 0)
    device_backend(stream.device.type).copy(tensor.view().data, values, tensor.bytes(), stream);
  return tensor;
}

Tensor Context::to_device(const Tensor& tensor) const {
  if (!tensor.defined() || tensor.device() == kernels_.device()) return tensor;
  SHOAL_CHECK(tensor.device().is_cpu(), "a tensor on {} is given to kernels of {}",
              to_string(tensor.device()), to_string(kernels_.device()));
  return upload(tensor.const_view().data, tensor.shape(), tensor.dtype());
}

void Context::run(std::string_view name, std::initializer_list<Tensor> inputs,
                  std::initializer_list<Tensor> outputs, const std::function<void()>& body) const {
  dispatcher_.run({name, {inputs.begin(), inputs.size()}, {outputs.begin(), outputs.size()}}, body);
}

bool Context::records(std::span<const Value> inputs, std::span<Parameter* const> parameters) {
  const auto wants = [](const Parameter* parameter) { return parameter && parameter->trainable(); };
  if (!tape) {
    if (noted_uses)
      std::copy_if(parameters.begin(), parameters.end(), std::back_inserter(*noted_uses), wants);
    return false;
  }
  return std::any_of(parameters.begin(), parameters.end(), wants) ||
         std::any_of(inputs.begin(), inputs.end(),
                     [](const Value& value) { return value.needs_gradient(); });
}

kernels::RandomSite Context::next_site(std::uint32_t path_hash) {
  const std::uint32_t ordinal = ordinals[path_hash]++;
  // The kernel takes one 32-bit site, so path and ordinal are mixed. Mixing keeps sites of
  // different paths apart.
  std::uint32_t site = path_hash ^ (ordinal * 0x9e3779b9u);
  site ^= site >> 16;
  site *= 0x85ebca6bu;
  site ^= site >> 13;
  site *= 0xc2b2ae35u;
  site ^= site >> 16;
  return {random.seed, random.state, site, random.sample_first, random.sample_stride};
}

}  // namespace shoal::nn
