// Symmetric memory: allocations inside segments that every rank of the host maps.
#pragma once

#include <map>
#include <mutex>

#include "shoal/collectives/backend/native/group.h"
#include "shoal/runtime/memory/memory_resource.h"

namespace shoal::collectives::native {

// Allocates by first fit in segments of at least kSegmentBytes; untouched pages cost nothing. Freed
// ranges are merged and reused. Segments are kept until the group ends, because peers map them.
class SymmetricMemory final : public MemoryResource {
 public:
  static constexpr std::size_t kSegmentBytes = std::size_t{64} << 20;

  SymmetricMemory(std::shared_ptr<Group> group, CountingMemory* counted_by, double deadline_seconds)
      : group_(std::move(group)), counted_by_(counted_by), deadline_seconds_(deadline_seconds) {}

  void* allocate(std::size_t bytes, MemoryTag tag, Stream stream) override;
  void deallocate(void* pointer, std::size_t bytes, MemoryTag tag, Stream stream) noexcept override;
  Device device() const override { return Device::cpu(); }
  std::string name() const override;

 private:
  std::shared_ptr<Group> group_;
  CountingMemory* counted_by_;
  double deadline_seconds_;
  std::mutex mutex_;
  std::map<std::byte*, std::size_t> free_;  // by address; never merged across segments
  std::map<std::byte*, std::size_t> segments_;
};

}  // namespace shoal::collectives::native
