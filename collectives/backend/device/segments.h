// A rank's segments of device memory, which other ranks read and write in place. They are freed
// once the rank, and every rank of its process that holds them, has let go.
//
// Holding matters after a failure, because a failed rank ends at once. Neighbours that have not
// learned of it may still read its memory and copy into it, in work already or yet to be queued.
//
// Thread-safe.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "shoal/collectives/backend/device/peer_access.h"

namespace shoal::collectives::device {

class Segments {
 public:
  using Pointer = std::shared_ptr<Segments>;

  static Pointer make(std::shared_ptr<PeerAccess> access);
  ~Segments();
  Segments(const Segments&) = delete;
  Segments& operator=(const Segments&) = delete;

  void add(void* base) {
    const std::lock_guard lock(mutex_);
    bases_.push_back(base);
  }
  // Identifies the segments to other ranks; never reused. Knowing the number does not hold them,
  // because a rank that fails during setup cannot know which ranks have received it.
  std::uint64_t number() const { return number_; }
  // Returns the segments of a rank of this process. Null: that rank has ended, and no rank will use
  // its memory, because each operation begins with all ranks.
  static Pointer find(std::uint64_t number);
  // Number of live Segments in this process.
  static std::size_t count();
  // Other processes may open the segments from now on. They are then not freed, because the driver
  // forbids freeing open memory. Without closed_elsewhere(), they are kept until the process ends.
  void opened_elsewhere() { kept_ = true; }
  void closed_elsewhere() { kept_ = false; }

 private:
  explicit Segments(std::shared_ptr<PeerAccess> access) : access_(std::move(access)) {}

  const std::shared_ptr<PeerAccess> access_;
  std::uint64_t number_ = 0;
  std::mutex mutex_;
  std::vector<void*> bases_;
  std::atomic<bool> kept_{false};
};

}  // namespace shoal::collectives::device
