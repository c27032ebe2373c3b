// Host values on their way to a device, for which nobody waits.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "shoal/nn/autograd/context.h"
#include "shoal/runtime/memory/pinned_staging.h"

namespace shoal::parallel {

// Copies values into pinned memory, from which the device takes them when it comes so far. With
// kernels of the host it is Context::upload(). Its end waits for its copies.
class Uploads {
 public:
  // `pinned`: PinnedStaging's.
  explicit Uploads(MemoryResource* pinned = nullptr) : pinned_(pinned) {}
  // Queued on context.stream; the values may go when it returns.
  Tensor upload(const nn::Context& context, const void* values, const Shape& shape, DType dtype,
                MemoryTag tag = MemoryTag::data);
  // The same into memory of the tensor's own, which outlives the context's: for what a layer keeps
  // beside its parameters. The device's is counted nowhere.
  Tensor keep(const nn::Context& context, std::span<const std::int32_t> values);
  // `tensor` itself where kernels can read it.
  Tensor to_device(const nn::Context& context, const Tensor& tensor);

 private:
  // Queued on context.stream.
  void copy(const nn::Context& context, const void* values, const Tensor& to);
  MemoryResource* pinned_;
  std::optional<PinnedStaging> staging_;  // of the first call's device
};

// In host memory of its own, uninitialised.
Tensor host_tensor(const Shape& shape, DType dtype);
// What the host reads of it: itself, or of a device what it has of it (Context::host_copy()), or a
// copy, for which it waits.
Tensor on_host(const nn::Context& context, const Tensor& tensor);

}  // namespace shoal::parallel
