#include "shoal/collectives/backend/native/symmetric_memory.h"

#include <algorithm>

#include <fmt/format.h>

#include "shoal/runtime/base/error.h"

namespace shoal::collectives::native {
namespace {

// Rounds up to cache lines, which keeps two ranks' writes apart, and large blocks to pages.
std::size_t rounded(std::size_t bytes) {
  const std::size_t unit = bytes >= (std::size_t{1} << 16) ? 4096 : 64;
  return (bytes + unit - 1) / unit * unit;
}

}  // namespace

void* SymmetricMemory::allocate(std::size_t bytes, MemoryTag tag, Stream) {
  SHOAL_CHECK(bytes > 0 && bytes <= (std::size_t{1} << 46), "symmetric memory: {} bytes of {}",
              bytes, to_string(tag));
  const std::size_t length = rounded(bytes);
  const std::lock_guard lock(mutex_);
  auto found = std::ranges::find_if(free_, [&](const auto& f) { return f.second >= length; });
  if (found == free_.end()) {
    constexpr std::size_t kHuge = std::size_t{2} << 20;
    const std::size_t segment_bytes = std::max(kSegmentBytes, (length + kHuge - 1) / kHuge * kHuge);
    const auto segment =
        group_->add_segment(segment_bytes, Deadline::in_seconds(deadline_seconds_));
    segments_[segment->data()] = segment_bytes;
    found = free_.emplace(segment->data(), segment_bytes).first;
  }
  std::byte* const pointer = found->first;
  const std::size_t rest = found->second - length;
  free_.erase(found);
  if (rest > 0) free_.emplace(pointer + length, rest);
  if (counted_by_) counted_by_->count_external(static_cast<std::int64_t>(bytes), tag);
  return pointer;
}

void SymmetricMemory::deallocate(void* pointer, std::size_t bytes, MemoryTag tag, Stream) noexcept {
  const std::lock_guard lock(mutex_);
  auto* address = static_cast<std::byte*>(pointer);
  auto range = free_.emplace(address, rounded(bytes)).first;
  const auto next = std::next(range);
  if (next != free_.end() && range->first + range->second == next->first &&
      !segments_.contains(next->first)) {
    range->second += next->second;
    free_.erase(next);
  }
  if (range != free_.begin() && !segments_.contains(range->first)) {
    const auto previous = std::prev(range);
    if (previous->first + previous->second == range->first) {
      previous->second += range->second;
      free_.erase(range);
    }
  }
  if (counted_by_) counted_by_->count_external(-static_cast<std::int64_t>(bytes), tag);
}

std::string SymmetricMemory::name() const {
  return fmt::format("symmetric memory of {} ranks", group_->size());
}

}  // namespace shoal::collectives::native
