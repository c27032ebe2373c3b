#include "shoal/collectives/backend/net/scratch_memory.h"

#include "shoal/collectives/backend/net/net_engine.h"

namespace shoal::collectives::net {

void* ScratchMemory::allocate(std::size_t bytes, MemoryTag tag, Stream stream) {
  void* pointer = upstream_.allocate(bytes, tag, stream);
  if (bytes < kRegisterBytes) return pointer;
  try {
    const std::uint64_t region = engine_.hold_region(pointer, static_cast<std::int64_t>(bytes));
    const std::lock_guard lock(mutex_);
    regions_[pointer] = region;
  } catch (...) {
    upstream_.deallocate(pointer, bytes, tag, stream);
    throw;
  }
  return pointer;
}

void ScratchMemory::deallocate(void* pointer, std::size_t bytes, MemoryTag tag,
                               Stream stream) noexcept {
  {
    const std::lock_guard lock(mutex_);
    const auto found = regions_.find(pointer);
    if (found != regions_.end()) {
      engine_.retire_region(found->second);
      regions_.erase(found);
    }
  }
  upstream_.deallocate(pointer, bytes, tag, stream);
}

}  // namespace shoal::collectives::net
