// Memory that operations need besides the caller's buffers. It is registered with the engine's
// Endpoint while allocated; beneath a pool, that is once. Without it, a transport that pins pages
// would register scratch for each message, because it keeps no unused registrations.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>

#include "shoal/runtime/memory/memory_resource.h"

namespace shoal::collectives::net {

class NetEngine;

class ScratchMemory final : public MemoryResource {
 public:
  // Both must outlive it.
  ScratchMemory(NetEngine& engine, MemoryResource& upstream)
      : engine_(engine), upstream_(upstream) {}
  // Call with the engine's lock held: in Task::advance(), or by the engine.
  void* allocate(std::size_t bytes, MemoryTag tag, Stream stream) override;
  // Call with or without the lock.
  void deallocate(void* pointer, std::size_t bytes, MemoryTag tag, Stream stream) noexcept override;
  Device device() const override { return upstream_.device(); }
  std::string name() const override { return "scratch in " + upstream_.name(); }

 private:
  NetEngine& engine_;
  MemoryResource& upstream_;
  std::mutex mutex_;                        // taken after the engine's
  std::map<void*, std::uint64_t> regions_;  // the engine's
};

}  // namespace shoal::collectives::net
