// A limit on a process's memory, enforced by exceptions. Linux lets a process allocate more host
// memory than there is, and kills it when it uses that memory.
#pragma once

#include <functional>

#include "shoal/runtime/memory/memory_resource.h"

namespace shoal {

struct MemoryLimit {
  std::int64_t bytes = 0;
  std::string bound;  // source of the limit, for messages: "memory_limit_mb"
};

// Forwards to `upstream`, which must outlive it, while usage stays within the limit. Otherwise
// throws out_of_memory with the requested, used and allowed bytes. Large host blocks are counted in
// whole huge pages. Place it below a pool, so that memory that the pool keeps counts as used; on
// out_of_memory the pool releases that memory.
class LimitedMemory final : public MemoryResource {
 public:
  LimitedMemory(MemoryResource& upstream, MemoryLimit limit);
  void* allocate(std::size_t bytes, MemoryTag tag, Stream stream) override;
  void deallocate(void* pointer, std::size_t bytes, MemoryTag tag, Stream stream) noexcept override;
  // `elsewhere` returns bytes that were allocated without this resource. They count toward the
  // limit but are never refused. An example is a communicator's memory: ranks allocate it together,
  // so if one rank refused, the others would wait in their call. Call before the first allocation.
  void count_too(std::function<std::int64_t()> elsewhere) { elsewhere_ = std::move(elsewhere); }
  Device device() const override { return upstream_.device(); }
  std::string name() const override { return upstream_.name(); }

  std::int64_t in_use() const;
  const MemoryLimit& limit() const { return limit_; }

 private:
  MemoryResource& upstream_;
  const MemoryLimit limit_;
  std::function<std::int64_t()> elsewhere_;
  std::atomic<std::int64_t> given_{0};
};

}  // namespace shoal
