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

// First fit in segments of at least kSegmentBytes, kept until the end because peers have them open
// or registered (segments.h). A steady step makes no driver calls and finds its buffers at the same
// addresses. Blocks are aligned to 256 bytes.
//
// Stream-ordered: memory freed on a stream is available at once for allocations on it, without
// waiting. Other streams' free memory is taken only if the device has none left, after waiting for
// the whole device, since those streams may be gone.
//
// Thread-safe. A thread that asks the driver for more memory, or waits for the device, does not
// block threads that find a free block.
class ShareableMemory final : public MemoryResource {
 public:
  static constexpr std::size_t kSegmentBytes = std::size_t{8} << 20;

  // `stream`: for calls without one. `counted_by` may be null.
  ShareableMemory(std::shared_ptr<PeerAccess> access, Stream stream, CountingMemory* counted_by)
      : access_(std::move(access)),
        stream_(stream),
        counted_by_(counted_by),
        held_(Segments::make(access_)) {}

  void* allocate(std::size_t bytes, MemoryTag tag, Stream stream) override;
  void deallocate(void* pointer, std::size_t bytes, MemoryTag tag, Stream stream) noexcept override;
  Device device() const override { return stream_.device; }
  std::string name() const override;

  // The segment that holds all of [pointer, pointer + bytes), or null.
  void* segment_of(const void* pointer, std::size_t bytes) const;
  std::size_t segment_bytes(void* segment) const;
  // The handle of a segment. Calls the driver the first time.
  PeerAccess::Handle exported(void* segment);
  Segments& segments() const { return *held_; }
  // Memory freed from now on is not reused: neighbours may still be writing to it.
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
  const Segments::Held held_;
  mutable std::mutex mutex_;  // not held during driver calls, which may wait for the device
  using FreeRanges = std::map<void*, Ranges>;  // by stream; ranges of two segments are never merged
  FreeRanges free_;
  // Ranges that callers of take_from_others() wait for, oldest first; still owned by their streams.
  std::list<FreeRanges> awaited_;
  std::map<std::byte*, Segment> segments_;
  bool reuses_ = true;
};

// The location of a rank's buffer. Travels between ranks.
struct SharedPlace {
  std::uint64_t base = 0;  // of its segment, as its owner addresses it; 0: not shareable
  std::uint64_t offset = 0;
  PeerAccess::Handle handle{};
};

// Peers' segments, opened on first use, or held (segments.h). For one thread.
class OpenedSegments {
 public:
  // `same_process`, by rank: pointers of those ranks are used as they are.
  OpenedSegments(std::shared_ptr<PeerAccess> access, std::vector<bool> same_process)
      : access_(std::move(access)), same_process_(std::move(same_process)) {}
  ~OpenedSegments() { close(); }
  OpenedSegments(const OpenedSegments&) = delete;
  OpenedSegments& operator=(const OpenedSegments&) = delete;

  std::byte* pointer(int rank, const SharedPlace& place);
  // Holds the segments of a rank of this process until close(); null: that rank has ended.
  void hold(Segments::Held segments) { held_.push_back(std::move(segments)); }
  void close() noexcept;

 private:
  std::shared_ptr<PeerAccess> access_;
  std::vector<bool> same_process_;
  std::map<std::pair<int, std::uint64_t>, void*> opened_;
  std::vector<Segments::Held> held_;
};

}  // namespace shoal::collectives::device
