// Uploads host values to a device without waiting.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "shoal/nn/autograd/context.h"
#include "shoal/runtime/memory/pinned_staging.h"

namespace shoal::parallel {

// Copies values into pinned memory, from which the device copies them later. With host kernels it
// calls Context::upload(). The destructor waits for the copies.
class HostToDevice {
 public:
  // `pinned`: memory for PinnedStaging.
  explicit HostToDevice(MemoryResource* pinned = nullptr) : pinned_(pinned) {}
  // Queued on context.stream; the caller may free the values when it returns.
  Tensor upload(const nn::Context& context, const void* values, const Shape& shape, DType dtype,
                MemoryTag tag = MemoryTag::data);
  // As upload(), but the tensor owns its memory and may outlive the context: for tensors that a
  // layer keeps beside its parameters. On a device, limits and statistics do not include it.
  Tensor keep(const nn::Context& context, std::span<const std::int32_t> values);
  // Returns `tensor` itself if kernels can read it.
  Tensor to_device(const nn::Context& context, const Tensor& tensor);

 private:
  // Queued on context.stream.
  void copy(const nn::Context& context, const void* values, const Tensor& to);
  MemoryResource* pinned_;
  std::optional<PinnedStaging> staging_;  // for the device of the first call
};

// True if both tensors refer to the same elements in memory, or both are undefined.
bool same_memory(const Tensor& a, const Tensor& b);
// An uninitialised tensor that owns its host memory.
Tensor host_tensor(const Shape& shape, DType dtype);
// A microbatch's targets on a device, and their values in host memory for heads that read them on
// the host. Kept in Context::cache().
struct HostTargets {
  Tensor targets, values;
};
// Returns the tensor itself if it is in host memory, else its HostTargets::values. Undefined: the
// host does not know the values.
Tensor known_on_host(nn::Context& context, const Tensor& tensor);
// The same, but copies unknown values to the host and waits for the copy.
Tensor host_values(nn::Context& context, const Tensor& tensor);

}  // namespace shoal::parallel
