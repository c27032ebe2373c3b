// Allocates PyTorch's CPU tensors in symmetric memory, so that collectives need not copy gradients
// that PyTorch itself allocates. Enabled by SHOAL_TORCH_SYMMETRIC=1.
#pragma once

#include <memory>

#include "shoal/collectives/communicator.h"

namespace shoal::pytorch {

// If the variable is set, replaces PyTorch's allocator for CPU tensors. Large tensors then come
// from `owner` while it is open: the first group of several ranks that called this. Small tensors
// and those of forked processes still come from PyTorch's own allocator.
void offer_symmetric_memory(const std::shared_ptr<collectives::Communicator>& owner);
// Call before `owner` leaves its group. New tensors then come from the next group that offers its
// memory.
void withdraw_symmetric_memory(const std::shared_ptr<collectives::Communicator>& owner);

// Symmetric memory, with the Communicator that must outlive it.
struct SymmetricBlock {
  std::shared_ptr<collectives::Communicator> owner;
  std::size_t bytes = 0;
  int process = 0;  // that allocated it
};
// Frees the block's memory. In a forked child it leaks the block: another thread of the parent may
// have held the memory's lock at the fork, and the child must not destroy the Communicator.
void free_symmetric(SymmetricBlock block, void* pointer);

}  // namespace shoal::pytorch
