// Device tensors that the host fills before each step. Their addresses stay the same, as a captured
// step needs, and the host does not wait for the copies.
#pragma once

#include <vector>

#include "shoal/kernels/kernels.h"
#include "shoal/runtime/memory/pinned_staging.h"
#include "shoal/runtime/tensor/tensor.h"

namespace shoal::nn {

class StagedInputs {
 public:
  static constexpr std::size_t kAhead = 8;
  // `memory` must be on the kernels' device. `kernels`, `memory` and `pinned` (passed to
  // PinnedStaging) must outlive this object. With host kernels, fill() is an ordinary copy. The
  // destructor waits for pending copies.
  StagedInputs(kernels::Kernels& kernels, MemoryResource& memory, MemoryResource* pinned = nullptr)
      : memory_(memory), stream_(kernels.stream()), staging_(stream_.device, kAhead, pinned) {}

  // Queues copies of host tensors on the kernels' stream; undefined tensors stay undefined. The
  // copies keep their memory while shapes and dtypes stay the same. The host tensors may be freed
  // on return. If the host is kAhead calls ahead of the device, it waits for the oldest copies.
  const std::vector<Tensor>& fill(const std::vector<Tensor>& host);

 private:
  bool same_as_before(const std::vector<Tensor>& host) const;

  MemoryResource& memory_;
  Stream stream_;
  PinnedStaging staging_;
  std::vector<Tensor> device_;
};

}  // namespace shoal::nn
