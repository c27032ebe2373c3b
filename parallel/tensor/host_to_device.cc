#include "shoal/parallel/tensor/host_to_device.h"

#include <cstddef>
#include <cstring>

#include "shoal/nn/autograd/device_values.h"

namespace shoal::parallel {

Tensor HostToDevice::upload(const nn::Context& context, const void* values, const Shape& shape,
                            DType dtype, MemoryTag tag) {
  const Stream stream = context.stream;
  if (stream.device.is_cpu()) return context.upload(values, shape, dtype, tag);
  Tensor tensor = context.empty(shape, dtype, tag);
  copy(context, values, tensor);
  return tensor;
}

void HostToDevice::copy(const nn::Context& context, const void* values, const Tensor& to) {
  if (to.bytes() == 0) return;
  const Stream stream = context.stream;
  if (!staging_) staging_.emplace(stream.device, SIZE_MAX, pinned_);
  std::byte* const at = staging_->place(to.bytes());
  std::memcpy(at, values, to.bytes());
  device_backend(stream.device.type).copy(to.view().data, at, to.bytes(), stream);
  staging_->mark(stream);
}

Tensor HostToDevice::keep(const nn::Context& context, std::span<const std::int32_t> values) {
  const Shape shape{std::ssize(values)};
  const Device device = context.kernels().device();
  if (device.is_cpu()) {
    Tensor kept = host_tensor(shape, DType::i32);
    std::memcpy(kept.view().data, values.data(), values.size_bytes());
    return kept;
  }
  struct Own {
    std::unique_ptr<MemoryResource> memory;
    Buffer buffer;  // destroyed before its memory
  };
  const auto own = std::make_shared<Own>();
  own->memory = make_device_memory(device);
  own->buffer =
      Buffer(*own->memory, values.size_bytes(), MemoryTag::parameters, Stream{device, nullptr});
  const Tensor kept =
      Tensor::over(std::make_shared<Storage>(own->buffer.data(), values.size_bytes(), device, own),
                   0, shape, DType::i32);
  copy(context, values.data(), kept);
  return kept;
}

Tensor HostToDevice::to_device(const nn::Context& context, const Tensor& tensor) {
  if (!tensor.defined() || !tensor.device().is_cpu() || context.kernels().device().is_cpu())
    return context.to_device(tensor);
  return upload(context, tensor.const_view().data, tensor.shape(), tensor.dtype());
}

bool same_memory(const Tensor& a, const Tensor& b) {
  if (!a.defined() || !b.defined()) return a.defined() == b.defined();
  return a.const_view().data == b.const_view().data && a.shape() == b.shape();
}

Tensor host_tensor(const Shape& shape, DType dtype) {
  const auto bytes = static_cast<std::size_t>(shape.count()) * size_of(dtype);
  const auto memory =
      std::make_shared<std::vector<std::max_align_t>>(bytes / sizeof(std::max_align_t) + 1);
  return Tensor::over(std::make_shared<Storage>(memory->data(), bytes, Device::cpu(), memory), 0,
                      shape, dtype);
}

Tensor known_on_host(nn::Context& context, const Tensor& tensor) {
  if (tensor.device().is_cpu()) return tensor;
  const HostTargets& known = context.cache<HostTargets>();
  return same_memory(known.targets, tensor) ? known.values : Tensor();
}

Tensor host_values(nn::Context& context, const Tensor& tensor) {
  if (Tensor known = known_on_host(context, tensor); known.defined()) return known;
  const Tensor copy = host_tensor(tensor.shape(), tensor.dtype());
  nn::copy_to_host(copy.view().data, tensor, context.stream);
  return copy;
}

}  // namespace shoal::parallel
