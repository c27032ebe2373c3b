// Device memory that the other ranks of a host can reach.
#pragma once

#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "shoal/collectives/backend/device/segments.h"
#include "shoal/runtime/memory/memory_resource.h"

namespace shoal::collectives::device {

// Allocates first fit from segments of at least kSegmentBytes. It keeps segments until the end,
// because peers have them open or registered (segments.h). A steady step makes no driver calls and
// finds its buffers at the same addresses. Blocks are aligned to 256 bytes.
//
// Stream-ordered: memory freed on a stream is at once available to allocations on it, without
// waiting. Other streams' free memory is taken only if the device has none left. That waits for the
// whole device, because those streams may no longer exist.
//
// Thread-safe. A thread that asks the driver for memory, or waits for the device, does not block
// threads that find a free block.
class ShareableMemory final : public MemoryResource {
 public:
  static constexpr std::size_t kSegmentBytes = std::size_t{8} << 20;

  // `stream`: used by calls without one. `counted_by` may be null.
  ShareableMemory(std::shared_ptr<PeerAccess> access, Stream stream, CountingMemory* counted_by)
      : access_(std::move(access)),
        stream_(stream),
        counted_by_(counted_by),
        own_segments_(Segments::make(access_)) {}

  void* allocate(std::size_t bytes, MemoryTag tag, Stream stream) override;
  void deallocate(void* pointer, std::size_t bytes, MemoryTag tag, Stream stream) noexcept override;
  Device device() const override { return stream_.device; }
  std::string name() const override;

  // The segment that holds all of [pointer, pointer + bytes), or null.
  void* segment_of(const void* pointer, std::size_t bytes) const;
  std::size_t segment_bytes(void* segment) const;
  // Returns a segment's handle. Calls the driver the first time.
  PeerAccess::Handle exported(void* segment);
  Segments& segments() const { return *own_segments_; }
  // From now on, freed memory is not reused, because neighbours may still write to it.
  void stop_reuse();

 private:
  struct Segment {
    std::size_t bytes = 0;
    std::optional<PeerAccess::Handle> handle;
  };
  using Ranges = std::map<std::byte*, std::size_t>;  // by address
  void* user_of(Stream stream) const { return stream.handle ? stream.handle : stream_.handle; }
  static std::byte* take(Ranges& ranges, std::size_t length);
  void give(Ranges& ranges, std::byte* pointer, std::size_t length);
  std::byte* take_own(void* user, std::size_t length);
  std::byte* take_new(void* user, std::size_t length);
  std::byte* take_from_others(void* user, std::size_t length);
  std::byte* take_what_is_awaited(void* user, std::size_t length);

  std::shared_ptr<PeerAccess> access_;
  const Stream stream_;
  CountingMemory* counted_by_;
  const Segments::Pointer own_segments_;
  mutable std::mutex mutex_;  // not held during driver calls, which may wait for the device
  using FreeRanges = std::map<void*, Ranges>;  // by stream; a range never spans two segments
  FreeRanges free_;
  // Ranges that callers of take_from_others() wait for, oldest first. Their streams still own them.
  std::list<FreeRanges> awaited_;
  std::map<std::byte*, Segment> segments_;
  bool reuses_ = true;
};

// The place of a rank's buffer, as sent between ranks.
struct SharedPlace {
  std::uint64_t base = 0;  // the segment's address in its owner; 0: not shareable
  std::uint64_t offset = 0;
  PeerAccess::Handle handle{};
};

// Peers' segments: opened on first use if in another process, else kept alive (segments.h). Not
// thread-safe.
class OpenedSegments {
 public:
  // `same_process`, by rank: whether that rank's pointers are valid here as they are.
  OpenedSegments(std::shared_ptr<PeerAccess> access, std::vector<bool> same_process)
      : access_(std::move(access)), same_process_(std::move(same_process)) {}
  ~OpenedSegments() { close(); }
  OpenedSegments(const OpenedSegments&) = delete;
  OpenedSegments& operator=(const OpenedSegments&) = delete;

  std::byte* pointer(int rank, const SharedPlace& place);
  // Keeps the segments of a rank of this process alive until close(). Null: that rank has ended.
  void keep(Segments::Pointer segments) { kept_.push_back(std::move(segments)); }
  void close() noexcept;

 private:
  std::shared_ptr<PeerAccess> access_;
  std::vector<bool> same_process_;
  std::map<std::pair<int, std::uint64_t>, void*> opened_;
  std::vector<Segments::Pointer> kept_;
};

}  // namespace shoal::collectives::device
