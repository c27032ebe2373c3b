// Memory for what operations need besides the caller's buffers: registered with the engine's
// Endpoint for as long as it is allocated, which beneath a pool means once. Where registering pins
// pages the transport keeps no unused registration, and would register it for each message.
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
  // With the engine's lock held: in Task::advance(), or by the engine.
  void* allocate(std::size_t bytes, MemoryTag tag, Stream stream) override;
  // With the lock or without.
  void deallocate(void* pointer, std::size_t bytes, MemoryTag tag, Stream stream) noexcept override;
  Device device() const override { return upstream_.device(); }
  std::string name() const override { return "scratch in " + upstream_.name(); }

 private:
  NetEngine& engine_;
  MemoryResource& upstream_;
  std::mutex mutex_;                        // taken after the engine's
  std::map<void*, std::uint64_t> regions_;  // of the engine
};

}  // namespace shoal::collectives::net
