// Tensors on a device that are filled from the host before each step: their addresses stay, as a
// captured step needs, and the host goes on while the copies are on their way.
#pragma once

#include <vector>

#include "shoal/kernels/kernels.h"
#include "shoal/runtime/memory/pinned_staging.h"
#include "shoal/runtime/tensor/tensor.h"

namespace shoal::nn {

class StagedInputs {
 public:
  static constexpr std::size_t kAhead = 8;
  // `memory` is of the kernels' device; both outlive it, and so does `pinned` (PinnedStaging's).
  // With kernels of the host it is an ordinary copy. Its end waits for its copies.
  StagedInputs(kernels::Kernels& kernels, MemoryResource& memory, MemoryResource* pinned = nullptr)
      : memory_(memory), stream_(kernels.stream()), staging_(stream_.device, kAhead, pinned) {}

  // Copies of host tensors (undefined ones stay undefined), queued on the kernels' stream. As long
  // as dtypes and shapes are those of the call before, they have the same memory. The host tensors
  // may go when it returns. A host that is kAhead calls ahead of the device waits for the oldest
  // of their copies.
  const std::vector<Tensor>& fill(const std::vector<Tensor>& host);

 private:
  bool same_as_before(const std::vector<Tensor>& host) const;

  MemoryResource& memory_;
  Stream stream_;
  PinnedStaging staging_;
  std::vector<Tensor> device_;
};

}  // namespace shoal::nn
