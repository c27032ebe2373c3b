// Memory that operations need besides the caller's buffers, registered with the engine's Endpoint
// while it is allocated. Beneath a pool, each block is registered only once. A transport that pins
// pages keeps no unused registrations and would otherwise register scratch for each message.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>

#include "shoal/runtime/memory/memory_resource.h"

namespace shoal::collectives::net {

class NetEngine;

// Smaller buffers are not registered: every transport copies messages of this size.
inline constexpr std::size_t kRegisterBytes = 4096;

class ScratchMemory final : public MemoryResource {
 public:
  // Both arguments must outlive this object.
  ScratchMemory(NetEngine& engine, MemoryResource& upstream)
      : engine_(engine), upstream_(upstream) {}
  // Call with the engine's lock held, as the engine or from inside Task::advance().
  void* allocate(std::size_t bytes, MemoryTag tag, Stream stream) override;
  // Call with or without the lock.
  void deallocate(void* pointer, std::size_t bytes, MemoryTag tag, Stream stream) noexcept override;
  Device device() const override { return upstream_.device(); }
  std::string name() const override { return "scratch in " + upstream_.name(); }

 private:
  NetEngine& engine_;
  MemoryResource& upstream_;
  std::mutex mutex_;                        // lock after the engine's mutex
  std::map<void*, std::uint64_t> regions_;  // numbers of the engine's regions
};

}  // namespace shoal::collectives::net
