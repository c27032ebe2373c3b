// Marks for AddressSanitizer the blocks that the library cuts from device memory
// (runtime/memory/block_marks.h), in the order of their streams. A block reads as NaN from
// allocation until it is written, and again after it is freed. Compiled only under
// AddressSanitizer.
#include "shoal/runtime/memory/block_marks.h"

#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>

#include "arena.h"
#include "capture.h"
#include "memory.h"
#include "sanitizer.h"
#include "streams.h"
#include <fmt/format.h>

namespace shoal::emulated_gpu {
namespace {

// The state of a block. If no stream orders its owner, marks of earlier owners that have not yet
// run are ignored.
struct Cut {
  std::size_t allowed = 0, room = 0;
  std::uint64_t unordered_since = 0;  // the call that allocated it; 0: a stream orders it
};
struct Cuts {
  std::mutex mutex;
  std::map<const std::byte*, Cut> by_begin;
  static Cuts& get() {
    static Cuts& cuts = *new Cuts;  // outlives every thread
    return cuts;
  }
  using Range = std::map<const std::byte*, Cut>;
  // Blocks that overlap the range: another plan's, or blocks of freed memory.
  std::pair<Range::iterator, Range::iterator> within(const std::byte* begin, const std::byte* end) {
    auto first = by_begin.upper_bound(begin);
    if (first != by_begin.begin() &&
        std::prev(first)->first + std::prev(first)->second.room > begin)
      --first;
    return {first, by_begin.lower_bound(end)};
  }
  void forget(const std::byte* begin, const std::byte* end) {
    const auto [first, last] = within(begin, end);
    by_begin.erase(first, last);
  }
};

// Applies the mark of the `call`-th call.
void mark(std::byte* block, std::size_t allowed_bytes, std::size_t room, std::uint64_t call,
          bool ordered) {
  Cuts& cuts = Cuts::get();
  {
    const std::scoped_lock lock(cuts.mutex);
    const auto [first, last] = cuts.within(block, block + room);
    if (ordered && std::any_of(first, last,
                               [&](const auto& cut) { return cut.second.unordered_since > call; }))
      return;
    cuts.by_begin.erase(first, last);
    cuts.by_begin[block] = {allowed_bytes, room, ordered ? 0 : call};
  }
  // In stream order the last owner has finished with the block, and the next one has not started.
  if (ordered)
    Arena::get().fill(block, allowed_bytes > 0 ? allowed_bytes : room,
                      allowed_bytes > 0 ? Poison::fresh : Poison::freed);
  allow(block, allowed_bytes);
  forbid(block + allowed_bytes, room - allowed_bytes);
}

}  // namespace

void forget_cuts(const void* begin, std::size_t bytes) {
  Cuts& cuts = Cuts::get();
  const std::scoped_lock lock(cuts.mutex);
  const auto* const from = static_cast<const std::byte*>(begin);
  cuts.forget(from, from + bytes);
}

std::string describe_cut(const void* address) {
  Cuts& cuts = Cuts::get();
  const std::unique_lock lock(cuts.mutex, std::try_to_lock);
  if (!lock) return {};
  const auto* const at = static_cast<const std::byte*>(address);
  const auto after = cuts.by_begin.upper_bound(at);
  if (after == cuts.by_begin.begin()) return {};
  const auto& [begin, cut] = *std::prev(after);
  const auto offset = static_cast<std::size_t>(at - begin);
  if (offset >= cut.room) return {};
  if (cut.allowed == 0)
    return fmt::format(", byte {} of a block of it of {} that was given back", offset, cut.room);
  if (offset < cut.allowed)
    return fmt::format(", byte {} of a block of it of {} bytes", offset, cut.allowed);
  return fmt::format(", {} bytes behind the end of a block of it of {} bytes", offset - cut.allowed,
                     cut.allowed);
}

}  // namespace shoal::emulated_gpu

using namespace shoal::emulated_gpu;

void shoal::mark_device_block(void* pointer, std::size_t allowed, std::size_t room,
                              Stream handle) noexcept {
  auto* const block = static_cast<std::byte*>(pointer);
  if (Arena::get().device_of(block) < 0) return;
  static std::atomic<std::uint64_t> calls{0};
  const std::uint64_t number = ++calls;
  if (handle.handle == nullptr) return mark(block, allowed, room, number, false);
  (void)call_without_context("a block's mark", [&](Lock& lock) {
    const auto stream = stream_of(static_cast<cudaStream_t>(handle.handle));
    if (!stream) return cudaSuccess;
    if (Capture* const capture = stream->capture.get()) {
      if (capture->invalid) return cudaSuccess;
      // A block that was not allocated within the capture must not be freed at each launch.
      if (allowed > 0)
        capture->handed_out.insert(block);
      else if (!capture->handed_out.contains(block))
        return cudaSuccess;
    }
    Operation operation;
    operation.is_mark = true;
    operation.work = [=] { mark(block, allowed, room, number, true); };
    return submit(lock, stream, std::move(operation));
  });
}
