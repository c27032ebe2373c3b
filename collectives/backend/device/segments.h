// A rank's segments of device memory, which others read and write in place. The driver gets them
// back when the rank and all ranks of its process that hold them have let go: one that has failed
// ends at once, and neighbours that have not heard of it yet still fold out of its memory and copy
// into it, at work that is queued or that they queue next. Thread-safe.
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
  // By what other ranks find them; never another's. Who was told holds nothing yet: a rank that
  // fails while they find each other cannot know who has heard of it.
  std::uint64_t number() const { return number_; }
  // Those of a rank of this process. Null: it has ended, and no rank will use its memory, since
  // each operation begins with all of them.
  static Held find(std::uint64_t number);
  // How many there are in this process.
  static std::size_t count();
  // Other processes may open them from now on; until they have closed them the driver gets nothing
  // back, which it does not allow: where that is never known, they are kept until the process ends.
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
