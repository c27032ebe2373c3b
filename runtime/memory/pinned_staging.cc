#include "shoal/runtime/memory/pinned_staging.h"

#include <algorithm>
#include <utility>

namespace shoal {

PinnedStaging::PinnedStaging(Device device, std::size_t most_ahead, MemoryResource* pinned)
    : own_(device.is_cpu() ? make_host_memory()
           : pinned        ? nullptr
                           : make_pinned_memory()),
      memory_(own_ ? *own_ : *pinned),
      device_(device),
      most_ahead_(most_ahead) {}

PinnedStaging::~PinnedStaging() {
  for (const Event& mark : marks_) try {
      mark.synchronize();
    } catch (...) {  // the device is lost, so its copies are too
    }
}

PinnedStaging::Block& PinnedStaging::block_with(std::size_t bytes) {
  constexpr std::size_t kLeast = std::size_t{1} << 14;
  while (!marks_.empty() && (marks_.size() >= most_ahead_ || marks_.front().query())) {
    if (marks_.size() >= most_ahead_) marks_.front().synchronize();
    spare_.push_back(std::move(marks_.front()));
    marks_.pop_front();
    ++passed_;
  }
  const auto is_free = [&](const Block& block) { return block.until <= passed_; };
  if (!blocks_.empty() && is_free(blocks_.back())) blocks_.back().used = 0;
  if (!blocks_.empty() && blocks_.back().bytes.size() - blocks_.back().used >= bytes)
    return blocks_.back();
  auto found = std::ranges::find_if(
      blocks_, [&](const Block& block) { return is_free(block) && block.bytes.size() >= bytes; });
  Block next;
  if (found != blocks_.end()) {
    next.bytes = std::move(found->bytes);
  } else {
    found = std::ranges::find_if(blocks_, is_free);  // a free block that is too small is replaced
    next.bytes = Buffer(memory_, std::max(PoolMemory::rounded(bytes), kLeast), MemoryTag::data);
  }
  if (found != blocks_.end()) blocks_.erase(found);
  return blocks_.emplace_back(std::move(next));
}

std::byte* PinnedStaging::place(std::size_t bytes) {
  bytes = (bytes + 63) / 64 * 64;
  Block& block = block_with(bytes);
  block.until = passed_ + static_cast<std::int64_t>(marks_.size()) + 1;
  return static_cast<std::byte*>(block.bytes.data()) +
         std::exchange(block.used, block.used + bytes);
}

void PinnedStaging::mark(Stream stream) {
  if (spare_.empty()) spare_.emplace_back(device_);
  spare_.back().record(stream);
  marks_.push_back(std::move(spare_.back()));
  spare_.pop_back();
}

}  // namespace shoal
