#include "shoal/parallel/tensor/uploads.h"

#include <cstddef>
#include <cstring>
#include <utility>

#include "shoal/nn/autograd/device_values.h"

namespace shoal::parallel {

Uploads::~Uploads() {
  for (const Leaving& leaving : leaving_) try {
      leaving.taken.synchronize();
    } catch (...) {  // NOLINT(bugprone-empty-catch): the device is lost, and its copies with it
    }
}

Tensor Uploads::upload(const nn::Context& context, const void* values, const Shape& shape,
                       DType dtype, MemoryTag tag) {
  const Stream stream = context.stream;
  if (stream.device.is_cpu()) return context.upload(values, shape, dtype, tag);
  Tensor tensor = context.empty(shape, dtype, tag);
  if (tensor.bytes() == 0) return tensor;
  if (!pool_) {
    pinned_ = make_pinned_memory();
    pool_ = std::make_unique<PoolMemory>(*pinned_);
  }
  while (!leaving_.empty() && leaving_.front().taken.query()) {
    events_.push_back(std::move(leaving_.front().taken));
    leaving_.pop_front();
  }
  if (events_.empty()) events_.emplace_back(stream.device);
  Leaving leaving{Buffer(*pool_, tensor.bytes(), MemoryTag::data), std::move(events_.back())};
  events_.pop_back();
  std::memcpy(leaving.bytes.data(), values, tensor.bytes());
  device_backend(stream.device.type)
      .copy(tensor.view().data, leaving.bytes.data(), tensor.bytes(), stream);
  leaving.taken.record(stream);
  leaving_.push_back(std::move(leaving));
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
