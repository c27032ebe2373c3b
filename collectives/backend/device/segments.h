// A rank's segments of device memory, which others read and write in place. They are freed when the
// rank and all ranks of its process that hold them have let go.
//
// A failed rank ends at once. Neighbours that have not learned of it may still fold from its memory
// and copy into it, in work that is queued or will be queued. Thread-safe.
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
  using Held = std::shared_ptr<Segments>;

  static Held make(std::shared_ptr<PeerAccess> access);
  ~Segments();
  Segments(const Segments&) = delete;
  Segments& operator=(const Segments&) = delete;

  void add(void* base) {
    const std::lock_guard lock(mutex_);
    bases_.push_back(base);
  }
  // Identifies the segments to other ranks; never reused. Knowing the number does not hold them: a
  // rank that fails during setup cannot know which ranks have received it.
  std::uint64_t number() const { return number_; }
  // The segments of a rank of this process. Null: it has ended, and no rank will use its memory,
  // since each operation begins with all ranks.
  static Held find(std::uint64_t number);
  // Number of live Segments in this process.
  static std::size_t count();
  // Other processes may open them from now on. They are not freed until those have closed them,
  // because the driver forbids it. If that is never known, they are kept until the process ends.
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
