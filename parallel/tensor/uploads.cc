#include "shoal/parallel/tensor/uploads.h"

#include <cstddef>
#include <cstring>

#include "shoal/nn/autograd/device_values.h"

namespace shoal::parallel {

Tensor Uploads::upload(const nn::Context& context, const void* values, const Shape& shape,
                       DType dtype, MemoryTag tag) {
  const Stream stream = context.stream;
  if (stream.device.is_cpu()) return context.upload(values, shape, dtype, tag);
  Tensor tensor = context.empty(shape, dtype, tag);
  if (tensor.bytes() == 0) return tensor;
  if (!staging_) staging_.emplace(stream.device);
  std::byte* const at = staging_->place(tensor.bytes());
  std::memcpy(at, values, tensor.bytes());
  device_backend(stream.device.type).copy(tensor.view().data, at, tensor.bytes(), stream);
  staging_->mark(stream);
  return tensor;
}

Tensor Uploads::to_device(const nn::Context& context, const Tensor& tensor) {
  if (!tensor.defined() || !tensor.device().is_cpu() || context.kernels().device().is_cpu())
    return context.to_device(tensor);
  return upload(context, tensor.const_view().data, tensor.shape(), tensor.dtype());
}

Tensor host_tensor(const Shape& shape, DType dtype) {
  const auto bytes = static_cast<std::size_t>(shape.count()) * size_of(dtype);
  const auto memory =
      std::make_shared<std::vector<std::max_align_t>>(bytes / sizeof(std::max_align_t) + 1);
  return Tensor::over(std::make_shared<Storage>(memory->data(), bytes, Device::cpu(), memory), 0,
                      shape, dtype);
}

Tensor on_host(const nn::Context& context, const Tensor& tensor) {
  if (tensor.device().is_cpu()) return tensor;
  if (Tensor known = context.host_copy(tensor); known.defined()) return known;
  const Tensor copy = host_tensor(tensor.shape(), tensor.dtype());
  nn::copy_to_host(copy.view().data, tensor, context.stream);
  return copy;
}

}  // namespace shoal::parallel
