// Pinned memory for copies between a host and a device that run asynchronously. The host places
// bytes, queues their copies and records a mark in the stream. When the device has reached the
// mark, the memory is reused. Neither side waits while fewer than `most_ahead` marks are pending,
// and a steady step does not call the driver.
#pragma once

#include <deque>
#include <vector>

#include "shoal/runtime/memory/memory_resource.h"

namespace shoal {

class PinnedStaging {
 public:
  // For copies to or from `device`; uses plain memory if that is the host. If the device has not
  // reached `most_ahead` marks, place() waits for the oldest. `pinned`: resource for the pinned
  // blocks, must outlive the object; null: a resource of its own, which is not counted.
  explicit PinnedStaging(Device device, std::size_t most_ahead = SIZE_MAX,
                         MemoryResource* pinned = nullptr);
  ~PinnedStaging();  // waits for the marks
  PinnedStaging(const PinnedStaging&) = delete;
  PinnedStaging& operator=(const PinnedStaging&) = delete;

  // Returns memory of `bytes` bytes, 64-byte aligned, valid until the device reaches the next mark.
  std::byte* place(std::size_t bytes);
  void mark(Stream stream);

 private:
  struct Block {
    Buffer bytes;
    std::size_t used = 0;
    std::int64_t until = 0;  // free once the device has passed this many marks
  };
  Block& block_with(std::size_t bytes);

  std::unique_ptr<MemoryResource> own_;
  MemoryResource& memory_;
  const Device device_;
  const std::size_t most_ahead_;
  std::deque<Block> blocks_;  // the last one is being filled
  std::deque<Event> marks_;   // marks not known to have been reached, oldest first
  std::vector<Event> spare_;
  std::int64_t passed_ = 0;  // number of marks reached
};

}  // namespace shoal
