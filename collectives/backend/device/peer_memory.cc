#include "shoal/collectives/backend/device/peer_memory.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "shoal/runtime/memory/block_marks.h"
#include "shoal/runtime/memory/mebibytes.h"

namespace shoal::collectives::device {
namespace {

class HostPeerAccess final : public PeerAccess {
 public:
  std::string name() const override { return "one process"; }
  void* allocate(std::size_t bytes) override {
    return device_backend(DeviceType::cpu).allocate({}, bytes, {});
  }
  void deallocate(void* base) noexcept override {
    device_backend(DeviceType::cpu).deallocate({}, base, {});
  }
};

std::size_t rounded(std::size_t bytes) { return (bytes + 255) / 256 * 256; }

}  // namespace

std::unique_ptr<PeerAccess> make_host_peer_access() { return std::make_unique<HostPeerAccess>(); }

std::unique_ptr<PeerAccess> make_peer_access(Device device) {
  return device.is_cpu() ? make_host_peer_access() : make_cuda_peer_access(device);
}

void* ShareableMemory::allocate(std::size_t bytes, MemoryTag tag, Stream stream) {
  SHOAL_CHECK(bytes > 0 && bytes <= (std::size_t{1} << 46), "symmetric memory: {} bytes of {}",
              bytes, to_string(tag));
  const std::size_t length = rounded(bytes);
  void* const user = user_of(stream);
  std::byte* pointer = take_own(user, length);
  std::string cause;
  if (!pointer) try {
      pointer = take_new(user, length);
    } catch (const Error& problem) {
      if (problem.code() != ErrorCode::out_of_memory) throw;
      cause = problem.message();
      pointer = take_from_others(user, length);
    }
  if (!pointer)
    throw Error(
        ErrorCode::out_of_memory,
        fmt::format("{}: no room for {} of {} ({}){}", name(), mebibytes(bytes), to_string(tag),
                    cause, counted_by_ ? "; held are " + counted_by_->describe() : ""),
        "use a smaller batch or model, or more ranks");
  mark_taken(device(), pointer, bytes, length, stream, true);
  if (counted_by_) counted_by_->count_external(static_cast<std::int64_t>(bytes), tag);
  return pointer;
}

// Takes memory that this stream has freed, even if another thread is waiting for it.
std::byte* ShareableMemory::take_own(void* user, std::size_t length) {
  const std::lock_guard lock(mutex_);
  std::byte* pointer = take(free_[user], length);
  for (auto some = awaited_.begin(); !pointer && some != awaited_.end(); ++some)
    pointer = take((*some)[user], length);
  return pointer;
}

std::byte* ShareableMemory::take_new(void* user, std::size_t length) {
  // The driver's unit for mappings. A segment owns its pages, because its handle stands for them.
  constexpr std::size_t kPage = std::size_t{2} << 20;
  const std::size_t segment = std::max(kSegmentBytes, (length + kPage - 1) / kPage * kPage);
  auto* const base = static_cast<std::byte*>(access_->allocate(segment));
  own_segments_->add(base);
  const std::lock_guard lock(mutex_);
  segments_[base].bytes = segment;
  give(free_[user], base, segment);
  return take(free_[user], length);
}

std::byte* ShareableMemory::take(Ranges& ranges, std::size_t length) {
  const auto found =
      std::ranges::find_if(ranges, [&](const auto& r) { return r.second >= length; });
  if (found == ranges.end()) return nullptr;
  std::byte* const pointer = found->first;
  const std::size_t rest = found->second - length;
  ranges.erase(found);
  if (rest > 0) ranges.emplace(pointer + length, rest);
  return pointer;
}

void ShareableMemory::give(Ranges& ranges, std::byte* pointer, std::size_t length) {
  auto range = ranges.emplace(pointer, length).first;
  const auto next = std::next(range);
  if (next != ranges.end() && range->first + range->second == next->first &&
      !segments_.contains(next->first)) {
    range->second += next->second;
    ranges.erase(next);
  }
  if (range == ranges.begin() || segments_.contains(range->first)) return;
  const auto previous = std::prev(range);
  if (previous->first + previous->second != range->first) return;
  previous->second += range->second;
  ranges.erase(range);
}

// Takes memory that other streams have freed, once all work that uses it is done. Does not wait for
// those streams themselves: the handle of a destroyed stream may be invalid or name another stream.
//
// Two threads that run out of memory at the same time wait for the same memory. The second may find
// that the first has taken it, and then waits again.
std::byte* ShareableMemory::take_from_others(void* user, std::size_t length) {
  for (;;) {
    if (std::byte* const found = take_what_is_awaited(user, length)) return found;
    const std::lock_guard lock(mutex_);
    const bool elsewhere = std::ranges::any_of(
        free_, [&](const auto& of) { return of.first != user && !of.second.empty(); });
    if (!elsewhere && awaited_.empty()) return nullptr;
  }
}

std::byte* ShareableMemory::take_what_is_awaited(void* user, std::size_t length) {
  std::unique_lock lock(mutex_);
  awaited_.push_back(std::exchange(free_, {}));
  const auto own = std::prev(awaited_.end());
  std::swap(free_[user], (*own)[user]);
  const bool any = std::ranges::any_of(awaited_, [](const FreeRanges& some) {
    return std::ranges::any_of(some, [](const auto& of) { return !of.second.empty(); });
  });
  std::exception_ptr problem;
  if (any) {
    lock.unlock();
    try {
      access_->wait_for_device();
    } catch (const Error&) {
      problem = std::current_exception();
    }
    lock.lock();
  }
  const auto hand_over = [&](FreeRanges& from, bool to_user) {
    for (auto& [stream, ranges] : from)
      for (const auto& [pointer, bytes] : std::exchange(ranges, {}))
        give(free_[to_user ? user : stream], pointer, bytes);
  };
  // The same wait has also freed ranges that other threads began to wait for earlier.
  if (!problem)
    for (auto some = awaited_.begin(); some != own; ++some) hand_over(*some, true);
  hand_over(*own, !problem);
  awaited_.erase(own);
  if (problem) std::rethrow_exception(problem);
  return take(free_[user], length);
}

void ShareableMemory::deallocate(void* pointer, std::size_t bytes, MemoryTag tag,
                                 Stream stream) noexcept {
  const std::lock_guard lock(mutex_);
  if (reuses_) {
    mark_given_back(device(), pointer, rounded(bytes), stream);
    give(free_[user_of(stream)], static_cast<std::byte*>(pointer), rounded(bytes));
  }
  if (counted_by_) counted_by_->count_external(-static_cast<std::int64_t>(bytes), tag);
}

void ShareableMemory::stop_reuse() {
  const std::lock_guard lock(mutex_);
  reuses_ = false;
}

std::string ShareableMemory::name() const {
  return fmt::format("symmetric memory on {}", to_string(device()));
}

void* ShareableMemory::segment_of(const void* pointer, std::size_t bytes) const {
  const std::lock_guard lock(mutex_);
  const auto* first = static_cast<const std::byte*>(pointer);
  auto next = std::ranges::upper_bound(segments_, first, {},
                                       [](const auto& s) -> const std::byte* { return s.first; });
  if (next == segments_.begin()) return nullptr;
  const auto& [base, segment] = *std::prev(next);
  const auto offset = static_cast<std::size_t>(first - base);
  return offset <= segment.bytes && bytes <= segment.bytes - offset ? base : nullptr;
}

std::size_t ShareableMemory::segment_bytes(void* segment) const {
  const std::lock_guard lock(mutex_);
  return segments_.at(static_cast<std::byte*>(segment)).bytes;
}

PeerAccess::Handle ShareableMemory::exported(void* segment) {
  auto* const base = static_cast<std::byte*>(segment);
  {
    const std::lock_guard lock(mutex_);
    if (const auto& handle = segments_.at(base).handle) return *handle;
  }
  const PeerAccess::Handle handle = access_->export_memory(segment);
  own_segments_->opened_elsewhere();
  const std::lock_guard lock(mutex_);
  segments_.at(base).handle = handle;
  return handle;
}

std::byte* OpenedSegments::pointer(int rank, const SharedPlace& place) {
  if (same_process_[static_cast<std::size_t>(rank)])
    // NOLINTNEXTLINE(performance-no-int-to-ptr): another thread's pointer, as it sent it
    return reinterpret_cast<std::byte*>(place.base) + place.offset;
  void*& opened = opened_[{rank, place.base}];
  if (!opened) opened = access_->open(place.handle);
  return static_cast<std::byte*>(opened) + place.offset;
}

void OpenedSegments::close() noexcept {
  for (const auto& [key, opened] : opened_)
    if (opened) access_->close(opened);
  opened_.clear();
  kept_.clear();
}

}  // namespace shoal::collectives::device
