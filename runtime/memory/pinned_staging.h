// Pinned memory between a host and a device that are not in step: bytes are placed, their copies
// are queued, and a mark in the stream says when the places may be used again. Nobody waits, and in
// a steady state the driver is asked for nothing.
#pragma once

#include <deque>
#include <vector>

#include "shoal/runtime/memory/memory_resource.h"

namespace shoal {

class PinnedStaging {
 public:
  // For copies to or from `device`; of a host, plain memory. With `most_ahead` marks that the
  // device has not come to, place() waits for the oldest. `pinned`: what blocks are taken from for
  // a device, and outlives the object; null: memory of its own, that nobody counts.
  explicit PinnedStaging(Device device, std::size_t most_ahead = SIZE_MAX,
                         MemoryResource* pinned = nullptr);
  ~PinnedStaging();  // waits for the marks
  PinnedStaging(const PinnedStaging&) = delete;
  PinnedStaging& operator=(const PinnedStaging&) = delete;

  // `bytes`, aligned to 64, until the device has come to the next mark.
  std::byte* place(std::size_t bytes);
  void mark(Stream stream);

 private:
  struct Block {
    Buffer bytes;
    std::size_t used = 0;
    std::int64_t until = 0;  // of so many marks the device has to come to the last
  };
  Block& block_with(std::size_t bytes);

  std::unique_ptr<MemoryResource> own_;
  MemoryResource& memory_;
  const Device device_;
  const std::size_t most_ahead_;
  std::deque<Block> blocks_;  // the last one is being filled
  std::deque<Event> marks_;   // that the device has not been seen at, in order
  std::vector<Event> spare_;
  std::int64_t passed_ = 0;  // marks
};

}  // namespace shoal
