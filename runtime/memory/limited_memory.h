// A bound on what a process takes, found out by a throw: on Linux host memory that is not there is
// given all the same, and the process is killed when it is touched.
#pragma once

#include <functional>

#include "shoal/runtime/memory/memory_resource.h"

namespace shoal {

struct MemoryLimit {
  std::int64_t bytes = 0;
  std::string bound;  // whose it is, for messages: "memory_limit_mb"
};

// Passes on to `upstream`, which must outlive it, as long as no more than the limit is in use; else
// throws out_of_memory with the bytes asked for, in use and allowed. Large blocks of a host count
// with the whole huge pages that they get. Below a pool: what the pool
// keeps is in use, and the pool gives it back when it is told no.
class LimitedMemory final : public MemoryResource {
 public:
  LimitedMemory(MemoryResource& upstream, MemoryLimit limit);
  void* allocate(std::size_t bytes, MemoryTag tag, Stream stream) override;
  void deallocate(void* pointer, std::size_t bytes, MemoryTag tag, Stream stream) noexcept override;
  // Bytes that others took, which count and were not refused (a communicator's, which its ranks
  // take together: a rank that was told no would leave the others in their call). Before the first
  // allocation.
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
