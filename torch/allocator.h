// PyTorch's CPU tensors in symmetric memory, so that collectives do not copy gradients that PyTorch
// allocates itself. Only with SHOAL_TORCH_SYMMETRIC=1.
#pragma once

#include <memory>

#include "shoal/collectives/communicator.h"

namespace shoal::pytorch {

// If the variable asks for it: PyTorch's allocator for CPU tensors from now on. Large tensors come
// from `owner`, the first group of several ranks that calls this, while it is open; all others, and
// those of forked processes, come from PyTorch's own allocator.
void offer_symmetric_memory(const std::shared_ptr<collectives::Communicator>& owner);

}  // namespace shoal::pytorch
